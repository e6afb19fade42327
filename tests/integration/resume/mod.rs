//! A run that is stopped, killed or out of space loses nothing that was finished, and goes on.

mod crash;
mod crash_rows;
mod ending;
