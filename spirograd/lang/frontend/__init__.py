"""From Python source to kernel IR: the tracer walks the syntax tree once and emits SSA as it goes."""
