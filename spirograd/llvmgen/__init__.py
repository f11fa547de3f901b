"""Code generators that emit LLVM IR from device IR."""
