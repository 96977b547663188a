"""What is compiled, how hard the compiler tries, and what is kept."""
