//! A run that is stopped or killed loses nothing that was finished, and goes on.

mod crash;
mod crash_rows;
mod ending;
