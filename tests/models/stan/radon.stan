data {
  int<lower=0> N;
  int<lower=0> C;
  array[N] int<lower=1, upper=C> county;
  vector[N] ground;
  vector[N] y;
}
parameters {
  real mean_county;
  real slope;
  real<lower=0> sd_county;
  real<lower=0> sd_y;
  vector[C] z;
}
transformed parameters {
  vector[C] intercept = mean_county + sd_county * z;
}
model {
  mean_county ~ normal(0, 5);
  slope ~ normal(0, 5);
  sd_county ~ normal(0, 1);
  sd_y ~ normal(0, 1);
  z ~ std_normal();
  y ~ normal(intercept[county] + slope * ground, sd_y);
}
generated quantities {
  array[N] real y_rep = normal_rng(intercept[county] + slope * ground, sd_y);
  vector[N] log_lik;
  for (n in 1:N) log_lik[n] = normal_lpdf(y[n] | intercept[county[n]] + slope * ground[n], sd_y);
}
