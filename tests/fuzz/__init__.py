"""Random kernels at the level of the language, checked against an evaluator that shares no code with the compiler."""
