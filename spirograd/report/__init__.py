"""One page of HTML that shows kernels at every stage of their compilation, line by line beside the Python that they come from."""
