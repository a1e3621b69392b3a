"""Fast rounding: plans of formats, executed by C++ on a CPU and by Triton on CUDA."""
