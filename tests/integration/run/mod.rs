//! How stages run: order, loops, retries, cost, programs, and what a run prints meanwhile.

mod loops;
mod programs;
mod scheduling;
mod shown;
mod stages;
