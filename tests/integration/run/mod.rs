//! How stages run: order, loops, retries, cost, programs, processes, and what a run prints meanwhile.

mod loops;
mod processes;
mod programs;
mod scheduling;
mod shown;
mod stages;
