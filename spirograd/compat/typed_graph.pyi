"""What type checkers and editors see of ``graph`` of the family: graphs of launches, and the structure of kernels that are graphs."""

from spirograd.compat.launch_graphs import Arg as Arg
from spirograd.compat.launch_graphs import ArgKind as ArgKind
from spirograd.compat.launch_graphs import Graph as Graph
from spirograd.compat.launch_graphs import GraphBuilder as GraphBuilder
from spirograd.lang.graph_statements import do_while as do_while
from spirograd.lang.graph_statements import parallel as parallel
from spirograd.lang.graph_statements import parallel_context as parallel_context
