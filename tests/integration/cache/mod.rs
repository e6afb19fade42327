//! The results on disk of one machine: which of them a run uses, rows that stages share, damage, housekeeping.

mod damage;
mod housekeeping;
mod results;
mod rows;
