slurmdir = $(pkgdatadir)/slurm
dist_slurm_DATA = \
	slurm/bench.sbatch \
	slurm/site.conf.example \
	slurm/sweep.sbatch \
	slurm/train.sbatch
