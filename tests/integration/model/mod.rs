//! Runs with a model: episodes and their checks, judges, training, recorded conversations.

mod aging;
mod checks;
mod judges;
mod own_model;
mod practice;
mod traces;
