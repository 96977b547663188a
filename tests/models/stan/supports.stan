// Supports of many kinds, for names, shapes and the order of indices.
parameters {
  simplex[3] p;
  corr_matrix[3] R;
  matrix<lower=0>[2, 3] m;
  ordered[2] o;
}
model {
  p ~ dirichlet(rep_vector(2, 3));
  R ~ lkj_corr(2);
  to_vector(m) ~ lognormal(0, 0.5);
  m[1, 2] ~ lognormal(3, 0.1);
  o ~ normal(0, 1);
}
generated quantities {
  int flag = m[1, 2] > 10;
}
