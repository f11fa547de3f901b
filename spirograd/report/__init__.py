"""An HTML page that shows kernels at every stage of compilation, line by line beside their Python source."""
