"""Fast ways to round: plans of formats, carried out by C++ on a CPU and by Triton on CUDA."""
