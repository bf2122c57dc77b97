slurmdir = $(pkgdatadir)/slurm
dist_slurm_DATA = \
	slurm/README.md \
	slurm/bench.sbatch \
	slurm/site.conf.example \
	slurm/sweep.sbatch \
	slurm/train.sbatch
