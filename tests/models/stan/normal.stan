data {
  int<lower=0> N;
  vector[N] y;
}
parameters {
  real mean;
  real<lower=0> sd;
}
model {
  mean ~ normal(0, 1);
  sd ~ normal(0, 1);
  y ~ normal(mean, sd);
}
