"""PFG and its parts: function classes, preconditioners, objective, solvers."""
