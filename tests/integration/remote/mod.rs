//! Several machines: a shared cache, a cache on a shared path, stages as jobs of a batch system.

mod jobs;
mod local_jobs;
mod shared_cache;
mod shared_path;
