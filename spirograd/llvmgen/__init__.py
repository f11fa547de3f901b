"""Device IR to LLVM IR."""
