//! `mcprl serve`: a policy and its agent for other programs.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::{
    Outcome,
    approval::{Approval, Cancelled, RuleArgs},
    locations::Locations,
    runtime,
    subject::{Named, Scratch, Setting, Subject, SubjectError},
    unless_interrupted,
};
use crate::{
    agent::Refusal,
    data::{self, CallError, Scenario, VerdictRow},
    error::{Diagnostic, Failure, Result},
    mcp::serve_stdio,
    openai::Log,
    report::escape::{outgoing, visible},
    serve::{
        AGENT, About as AboutPage, Agent, ApiServer, AskServer, Keeper, Permit, Policy, ServeError, Service,
        check,
    },
    stage::{OpenAgent, OpenPolicy},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Serve {
    /// What is served: a run, as `mcprl runs` lists it or as a path, with all its policies and its agent; a run file, for its
    /// newest run; or a model's folder or GGUF file, or an adapter's folder.
    #[arg(value_name = "RUN | FILE | MODEL | ADAPTER", default_value = "latest")]
    subject: String,
    /// The policy of the run that the agent plays [default: the newest].
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// The server of a model's agent: a run file, with its agent and engine sections, a client's mcp.json, or a URL.
    #[arg(long, value_name = "FILE|URL")]
    server: Option<String>,
    /// Which server of an mcp.json.
    #[arg(long, value_name = "NAME", requires = "server")]
    name: Option<String>,
    /// The model of an adapter [default: what its configuration names].
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,
    /// Serve the agent as an MCP server on standard input and output. With `--port`, over HTTP, as without this option.
    #[arg(long)]
    mcp: bool,
    /// Play the tasks of the run's exam by the agent over HTTP, compare with the exam's greedy episodes of the policy, and end.
    /// Exits with 1 if not as many are solved.
    #[arg(long, conflicts_with = "mcp")]
    check: bool,
    /// The port; 0 takes any free one [default: 8080].
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The address to listen on. An address that other machines can reach needs a key.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The environment variable with the key that clients send.
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Most answers in progress; further requests are refused until one has ended.
    #[arg(long, value_name = "NUMBER", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    max_requests: u16,
    /// Most tokens of all answers in progress: tokens × choices × (1 + `top_logprobs`). A request with `top_logprobs` may take an
    /// eighth of them [default: --max-requests times the context].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Keep each conversation as a file in this folder: its messages, and the sampled tokens with their log-probabilities.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "serve", class = usage)]
enum ServeArgsError {
    #[error("the environment variable {name} is not set")]
    #[hint = "put the key that clients send into {name}"]
    NoKey { name: String },
    #[error("there is no exam of the policy with greedy episodes")]
    #[hint = "name a run that compares policies by a stage with `greedy = true`, and one of them with `--policy`"]
    NoExam,
}

impl Serve {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let key = self.api_key_env.as_ref().map(|name| {
            let key = std::env::var(name).ok().filter(|key| !key.is_empty());
            key.ok_or_else(|| ServeArgsError::NoKey { name: name.clone() })
        });
        let key = key.transpose()?;
        let runtime = runtime()?;
        let is_stdio = self.mcp && self.port.is_none();
        runtime.block_on(async {
            let served = async {
                // A port in use is found before a model is loaded.
                let server = match is_stdio {
                    true => None,
                    false => {
                        let port = self.port.unwrap_or(if self.check { 0 } else { 8080 });
                        Some(ApiServer::bind(self.host, port, key.is_some()).await?)
                    }
                };
                let (service, exam, scratch) = self.open(printer).await?;
                let service = Service { key, ..service };
                match server {
                    None => {
                        let no_server = || SubjectError::NoServer { model: self.subject.clone() };
                        serve_stdio(service.agent.clone().ok_or_else(no_server)?).await?;
                    }
                    Some(server) if self.check => {
                        let (tasks, episodes) = exam.ok_or(ServeArgsError::NoExam)?;
                        let policy = service.policies.first().map(|policy| policy.input.digest);
                        let exam = check::exam(&tasks, &episodes, &policy.ok_or(ServeArgsError::NoExam)?)?;
                        if exam.is_empty() {
                            return Err(ServeArgsError::NoExam.into());
                        }
                        let (url, key) = (server.url(), service.key.clone());
                        let compared = tokio::select! {
                            served = server.serve(Arc::new(service)) => return Ok(served.map(|()| Outcome::Failed)?),
                            compared = check::check(&url, key.as_deref(), exam) => compared?,
                        };
                        return Ok(compare(printer, &compared));
                    }
                    Some(server) => {
                        self.show(printer, &server.url(), &service);
                        server.serve(Arc::new(service)).await?;
                    }
                }
                drop(scratch);
                Ok(Outcome::Success)
            };
            unless_interrupted(served).await
        })
    }

    /// What is served, the tasks and episodes of its exam, and the folder of what was made for it alone.
    async fn open(&self, printer: Printer) -> Result<(Service, Option<(PathBuf, PathBuf)>, Scratch)> {
        let server: Vec<String> = self.server.iter().cloned().collect();
        let named = Named {
            subject: &self.subject,
            policy: self.policy.as_deref(),
            server: &server,
            server_name: self.name.as_deref(),
            base: self.base.as_deref(),
            locations: &self.locations,
        };
        let Subject { policy, run, policies, about, setting } = named.find().await?;
        let Setting { tools, settings, context, notes, scratch } = setting;
        let verdict: Vec<VerdictRow> = match &about.verdict {
            Some((table, _)) => data::read(table)?,
            None => Vec::new(),
        };
        let tasks: Vec<Scenario> = match &about.exam {
            Some((table, _)) => data::read(table)?,
            None => Vec::new(),
        };
        let open = Arc::new(OpenPolicy::open(&context, &policy, &settings).await?);
        let queue = usize::from(self.max_requests);
        let report = move |failure: ServeError| {
            let failure = Failure::from(failure);
            printer.say(&format!("note: {}", visible(&failure.to_string())));
        };
        let keeper = self.keep.clone().map(|folder| Keeper::new(folder, report).map(Arc::new)).transpose()?;
        let agent = match &tools {
            None if self.mcp => return Err(SubjectError::NoServer { model: self.subject.clone() }.into()),
            None => match self.rules.first() {
                Some(option) => return Err(SubjectError::Stray { option, to: "an agent" }.into()),
                None => None,
            },
            Some(tools) => {
                let open = OpenAgent::of(&context, &open, &policy, tools, &settings)?;
                let asks = self.unapproved(&open)?;
                if !asks.is_empty() {
                    printer.say(&format!(
                        "note: nobody here can approve calls of {}, so the agent makes none: `--yes` lets it call them all, `--allow \
                         TOOL` this one",
                        visible(&asks.join(", "))
                    ));
                }
                let permit = self.permit(&open)?;
                Some((Agent::new(open, permit, keeper.clone(), AGENT, &policy), tools.clone()))
            }
        };
        notes.take().iter().for_each(|note| printer.say(&format!("note: {}", visible(note))));
        let is_chosen = |known: &crate::stage::Input| known.digest == policy.digest;
        let (mut first, others): (Vec<_>, Vec<_>) = policies.into_iter().partition(is_chosen);
        if first.is_empty() {
            first.push(policy.clone());
        }
        let chosen = first.into_iter().map(|input| Policy::new(input, Some(open.clone())));
        let all = chosen.chain(others.into_iter().map(|input| Policy::new(input, None))).collect();
        let log: Log = Arc::new(move |told: &str| {
            printer.error(&ServeError::Request { told: outgoing(told) }.into());
        });
        let tokens = self.max_tokens.map(|tokens| tokens as usize);
        let mut service = Service::new(context, settings, all, (queue, tokens), log.clone());
        service.run = run;
        service.keeper = keeper;
        service.about = AboutPage::new(about.title.clone(), &verdict, tasks);
        service.agent = agent.map(|(agent, tools)| AskServer {
            description: about.description(&agent.open.tools),
            title: about.title.clone(),
            agent: Arc::new(agent),
            tools,
            queue: service.queue.clone(),
            log,
        });
        Ok((service, about.exam, scratch))
    }

    /// Tools whose calls a person would have to approve.
    fn unapproved(&self, open: &OpenAgent) -> Result<Vec<String>> {
        let approval = Approval::new(&self.rules, &open.tools, &open.agent.toolbox, None)?;
        let asks = open.tools.iter().filter(|tool| !tool.synthetic && approval.of_tool(&tool.name) == "asks");
        Ok(asks.map(|tool| tool.name.clone()).collect())
    }

    /// The rules of chat, without a person who could be asked.
    fn permit(&self, open: &OpenAgent) -> Result<Permit> {
        let approval = Mutex::new(Approval::new(&self.rules, &open.tools, &open.agent.toolbox, None)?);
        Ok(Arc::new(move |tool: &str, arguments: &mut Map<String, Value>| {
            let mut approval = approval.lock();
            // Nobody is asked, so nobody cancels.
            let cancelled = |_: Cancelled| Err(Refusal(CallError::Refused, "cancelled".into()));
            approval.decide(tool, arguments).unwrap_or_else(cancelled)
        }))
    }

    fn show(&self, printer: Printer, url: &str, service: &Service) {
        let models = service.models();
        match printer.format {
            OutputFormat::Json => printer.data(&json!({"url": url, "models": models}).to_string()),
            OutputFormat::Human => {
                let asks = self
                    .api_key_env
                    .as_ref()
                    .map(|name| format!(" (the page asks for the key, the value of {name})"));
                printer.say(&format!("open     {url}/{}", asks.unwrap_or_default()));
                printer.say(&format!("openai   {url}/v1 with the models {}", visible(&models.join(", "))));
                if service.agent.is_some() {
                    printer.say(&format!("mcp      {url}/mcp"));
                }
            }
        }
    }
}

/// Prints how the endpoint compares with the exam.
fn compare(printer: Printer, compared: &check::Comparison) -> Outcome {
    let check::Comparison { tasks, left_out, exam, served, same_answers } = *compared;
    let difference = served as i64 - exam as i64;
    printer.show(compared, || {
        format!(
            "{served} of {tasks} tasks solved at the endpoint, {exam} in the exam: difference {difference}\n\
             {same_answers} answers are the same"
        )
    });
    if left_out > 0 && printer.format == OutputFormat::Human {
        printer.say(&format!("note: left out {left_out} tasks that an answer alone does not decide"));
    }
    if served == exam { Outcome::Success } else { Outcome::Failed }
}
