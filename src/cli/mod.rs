//! The command line: resolves arguments and environment once, and has one file per command.
//!
//! Exit codes: 0 success, 1 the operation failed, 2 the command line or a file it names is wrong, 130
//! interrupted.

mod approval;
mod cache;
mod chat;
mod completions;
mod conformance;
mod connect;
mod demo_server;
mod doctor;
mod drift;
mod episodes;
mod export;
mod from;
mod init;
mod listing;
mod locations;
mod man;
mod plan;
mod policy_source;
mod probe;
mod push;
mod rejudge;
mod report;
mod review;
mod run;
mod run_args;
mod runs;
mod scenarios;
mod schema;
mod serve;
mod server;
mod stage;
mod stage_context;
mod subject;
mod submit;
mod target;
mod traces;
mod track;
mod ui;
mod variants;
mod watch;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    child, engine,
    error::{Class, Diagnostic, Interrupted, Result},
    ui::{LogFormat, OutputFormat, Printer},
};

/// Trains a base language model to be measurably better at the tools of an MCP server.
#[derive(Parser)]
#[command(name = "mcprl", version, max_term_width = 100, subcommand_required = true)]
struct Arguments {
    /// Print JSON: data on standard output, errors on standard error.
    #[arg(long, global = true)]
    json: bool,
    /// The format of messages on standard error.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", hide_default_value = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the stages of a run file; cached stages are skipped.
    Run(run::Run),
    /// Continue a run that was interrupted or failed.
    Resume(run::Resume),
    /// Send a whole run to a batch system as one job.
    Submit(submit::Submit),
    /// Show what a run would do, and why. Changes nothing.
    Plan(plan::PlanArgs),
    /// List the runs in the cache.
    Runs(runs::Runs),
    /// Write a policy as a folder for PEFT, or merged for Transformers.
    Export(export::Export),
    /// Upload an exported policy, or data, to the Hugging Face hub.
    Push(push::Push),
    /// Chat with an agent at the prompt: the policy of a run, or a model and a server.
    Chat(chat::Chat),
    /// Serve a policy and its agent to other programs: OpenAI's API, and MCP.
    Serve(serve::Serve),
    /// Show a run or one of its stages: artifacts and their origin, metrics, times, key.
    Show(runs::Show),
    /// Print episodes as transcripts: the task, what the model said and called, the answer, and what is wrong with it.
    Episodes(episodes::Episodes),
    /// Compare the keys and metrics of two runs, stage by stage.
    Diff(runs::Diff),
    /// Write a report of a run, compare runs, or report to the server's author.
    Report(report::Report),
    /// Score the episodes of a run with another judge, and show what would change.
    Rejudge(rejudge::Rejudge),
    /// List, check, clean, export and import cached results.
    #[command(subcommand)]
    Cache(cache::Cache),
    /// Print the run file's JSON Schema, for editors.
    Schema(schema::Schema),
    /// Print the templates that say how to use a batch system.
    Executors(submit::Executors),
    /// Print completions for a shell.
    Completions(completions::Completions),
    /// Write manual pages.
    Man(man::Man),
    /// Check what this machine supports, and what a run file needs.
    Doctor(doctor::Doctor),
    /// Connect to an MCP server and list what it offers.
    Connect(connect::Connect),
    /// Write a commented run file for your own MCP server.
    Init(init::Init),
    /// Show the stage kinds and their cards.
    #[command(subcommand)]
    Stage(stage::Stage),
    /// List or review recorded conversations, for a stage of kind `traces`.
    Traces(traces::Traces),
    /// Review the tasks of a run or file.
    #[command(subcommand)]
    Scenarios(scenarios::Scenarios),
    /// Serve a demo MCP server.
    DemoServer(demo_server::DemoServer),
    /// Run a stage of a run as a job; started by the job's script.
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// Be a client under test of the MCP conformance suite.
    #[command(hide = true)]
    McpConformance(conformance::McpConformance),
    /// Serve the live page of runs: curves, episodes, tokens, exam, judges.
    Ui(ui::Ui),
    /// Follow a run of another terminal or machine.
    Watch(watch::Watch),
    /// Send a run to experiment trackers: TensorBoard, Weights & Biases, trackio.
    Track(track::Track),
}

/// The result of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Success,
    Failed,
    Interrupted,
}

/// Runs the command that the process's arguments name. `trim` returns the allocator's unused memory to the system.
pub fn main(trim: fn()) -> ExitCode {
    engine::set_allocator_trim(trim);
    child::use_small_pages();
    let arguments = Arguments::parse();
    let format = if arguments.json { OutputFormat::Json } else { OutputFormat::Human };
    let printer = Printer { format, log: arguments.log_format };
    match arguments.command.execute(printer) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(failure) => {
            printer.error(&failure);
            match failure.class() {
                Class::Work => ExitCode::from(1),
                Class::Usage => ExitCode::from(2),
                Class::Interrupted => ExitCode::from(130),
            }
        }
    }
}

impl Command {
    fn execute(self, printer: Printer) -> Result<Outcome> {
        match self {
            Self::Run(command) => command.execute(printer),
            Self::Resume(command) => command.execute(printer),
            Self::Submit(command) => command.execute(printer),
            Self::Executors(command) => command.execute(printer),
            Self::Plan(command) => command.execute(printer),
            Self::Runs(command) => command.execute(printer),
            Self::Export(command) => command.execute(printer),
            Self::Chat(command) => command.execute(printer),
            Self::Serve(command) => command.execute(printer),
            Self::Show(command) => command.execute(printer),
            Self::Episodes(command) => command.execute(printer),
            Self::Diff(command) => command.execute(printer),
            Self::Report(command) => command.execute(printer),
            Self::Rejudge(command) => command.execute(printer),
            Self::Cache(command) => command.execute(printer),
            Self::Scenarios(command) => command.execute(printer),
            Self::Schema(command) => command.execute(printer),
            Self::Completions(command) => command.execute(printer),
            Self::Man(command) => command.execute(printer),
            Self::Doctor(command) => command.execute(printer),
            Self::Connect(command) => command.execute(printer),
            Self::Init(command) => command.execute(printer),
            Self::Stage(command) => command.execute(printer),
            Self::Push(command) => command.execute(printer),
            Self::Traces(command) => command.execute(printer),
            Self::DemoServer(command) => command.execute(printer),
            Self::McpConformance(command) => command.execute(printer),
            Self::Worker(command) => command.execute(printer),
            Self::Ui(command) => command.execute(printer),
            Self::Watch(command) => command.execute(printer),
            Self::Track(command) => command.execute(printer),
        }
    }
}

/// The result of this work, unless Ctrl-C or SIGTERM comes first.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        () = interrupted() => Err(Interrupted.into()),
    }
}

/// Ctrl-C, or SIGTERM, by which service managers and containers end a program.
async fn interrupted() {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
    }
}

async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => _ = terminate.recv().await,
        Err(_) => std::future::pending().await,
    }
}

/// A runtime for commands that use async code.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(NoRuntime)?)
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("cannot start the async runtime")]
#[diagnostic(code = "cli::no_runtime")]
struct NoRuntime(#[source] std::io::Error);
