//! `mcprl chat`: an agent at the prompt.
//!
//! What was trained is what answers: the system prompt, tools, limits, history and view of results are those of the run's
//! episodes ([`OpenAgent`]). The conversation itself is [`Talk`](crate::agent::Talk); here are its hooks.

mod error;
mod input;
mod trace;
mod view;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::{
    error::TalkError,
    input::Input,
    trace::{Header, Trace, user_messages},
    view::{Shows, View},
};
use super::{
    Outcome,
    approval::{Approval, Cancelled, RuleArgs},
    locations::Locations,
    runtime,
    server::is_url,
    stage_context::Notes,
    subject::{Named, Setting, Subject, SubjectError},
    terminated, unless_interrupted,
};
use crate::{
    agent::{
        AgentSettings, ConversationSource, EndpointSampling, History, Hooks, OneMessage, Refusal, Reply,
        Talk, Toolbox,
    },
    chat::Chat as ChatFormat,
    data::{End, Message, Tool},
    engine::Sampling,
    error::{Failure, Interrupted, Result},
    exec::{INTERRUPTED, kill_children},
    llm::LlmError,
    report::escape::visible,
    stage::{AgentSource, EndpointSource, OpenAgent, OpenEndpoint, endpoint::EndpointPolicy},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Chat {
    /// Who answers: a run, as `mcprl runs` lists it or as a path, for its newest policy; a run file, for its newest run; a
    /// model's folder or GGUF file, with its server; or the address of a model behind an endpoint of chat completions, such as
    /// https://host/v1, with its server.
    #[arg(value_name = "RUN | FILE | MODEL | URL", default_value = "latest")]
    subject: String,
    /// The model's name at the endpoint.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Environment variable with the endpoint's API key. Without it no key is sent.
    #[arg(long, value_name = "VARIABLE", requires = "model")]
    api_key_env: Option<String>,
    /// Another policy of the run: `base`, `start` and `trained` as the run compares them, or a stage that writes one, as
    /// `train[3]/update`.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// The server of a model: a run file, with its agent and engine sections, a client's mcp.json, or a URL.
    #[arg(long, value_name = "FILE|URL", conflicts_with = "command")]
    server: Option<String>,
    /// Which server of an mcp.json.
    #[arg(long, value_name = "NAME", requires = "server")]
    name: Option<String>,
    /// The command that starts the server of a model.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Temperature of sampling; 0 always takes the most likely token.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = temperature)]
    temperature: f32,
    /// Seed of sampling.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Most tokens of a turn [default: that of the run].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Most characters of a result that the model sees [default: that of the run].
    #[arg(long, value_name = "CHARACTERS", value_parser = clap::value_parser!(u32).range(64..))]
    truncate: Option<u32>,
    /// Replace the system prompt by this file's text.
    #[arg(long, value_name = "FILE")]
    system: Option<PathBuf>,
    /// Show the model's reasoning, dimmed.
    #[arg(long)]
    show_reasoning: bool,
    /// Write each conversation to a file in DIR, which a stage of kind `traces` learns from and `source = "traces"` reads.
    #[arg(long, value_name = "DIR")]
    trace_dir: Option<PathBuf>,
    /// Say this, print the answer, and end.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tasks", "replay"])]
    once: Option<String>,
    /// Give the agent each task of FILE in a conversation of its own: a line, or JSON with `task`.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    tasks: Option<PathBuf>,
    /// Say what the user said in a trace once more, one message after another.
    #[arg(long, value_name = "TRACE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    locations: Locations,
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().map_err(|cause| cause.to_string())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("should be 0 or more".into()) }
}

/// Ends the program on SIGTERM, as a person does by Ctrl-C at an empty prompt, and leaves nothing behind.
fn end_on_sigterm(runtime: &Runtime, setting: &Setting) {
    let scratch = setting.scratch.path().to_owned();
    runtime.spawn(async move {
        terminated().await;
        _ = std::fs::remove_dir_all(scratch);
        kill_children();
        std::process::exit(INTERRUPTED);
    });
}

/// What the user says.
enum Script {
    Once(String),
    /// Each in a conversation of its own.
    Tasks(Vec<String>),
    Replay(Vec<String>),
    Typed(Input),
}

impl Chat {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        // Mistakes in files are found before a model is loaded.
        let mut script = match (&self.once, &self.tasks, &self.replay) {
            (Some(text), ..) => Script::Once(text.clone()),
            (_, Some(file), _) => Script::Tasks(tasks(file)?),
            (.., Some(file)) => Script::Replay(user_messages(file)?),
            _ => Script::Typed(Input::open()?),
        };
        let runtime = runtime()?;
        if let Some(endpoint) = self.endpoint()? {
            let (setting, open) = runtime.block_on(unless_interrupted(self.open_endpoint(&endpoint)))?;
            say_notes(&setting.notes, printer);
            let sampling = EndpointSampling { temperature: self.temperature.into(), seed: Some(self.seed) };
            let talk = Talk::new(EndpointSource { open: &open, sampling });
            let open_agent = &open.agent;
            let shown = Shown {
                printer,
                label: &endpoint.model,
                tools: &open.tools,
                toolbox: &open_agent.toolbox,
                settings: &open_agent.settings,
                system: &open_agent.system,
                chat: None,
            };
            end_on_sigterm(&runtime, &setting);
            let done = self.play(&runtime, talk, &shown, &mut script);
            runtime.block_on(open.close());
            return done;
        }
        let (subject, open) = runtime.block_on(unless_interrupted(self.open()))?;
        say_notes(&subject.setting.notes, printer);
        let sampling = Sampling { temperature: self.temperature, ..Sampling::GREEDY };
        let talk = Talk::new(AgentSource { open: &open, sampling, seed: self.seed });
        let shown = Shown {
            printer,
            label: &subject.policy.name,
            tools: &open.tools,
            toolbox: &open.agent.toolbox,
            settings: &open.agent.settings,
            system: open.agent.chat.system(),
            chat: Some(&open.agent.chat),
        };
        end_on_sigterm(&runtime, &subject.setting);
        let done = self.play(&runtime, talk, &shown, &mut script);
        runtime.block_on(open.close());
        done
    }

    fn play<S: ConversationSource>(
        &self,
        runtime: &Runtime,
        talk: Talk<S>,
        shown: &Shown<'_>,
        script: &mut Script,
    ) -> Result<Outcome> {
        let printer = shown.printer;
        let (person, is_typed) = match &*script {
            Script::Typed(input) => (input.person(), true),
            _ => (None, false),
        };
        let shows =
            Shows { text: is_typed && printer.format == OutputFormat::Human, reasoning: self.show_reasoning };
        let header = self.trace_dir.clone().map(|folder| Header {
            folder,
            model: shown.label.to_owned(),
            tools: shown.toolbox.functions().to_vec(),
            system: self.system.as_ref().map(|_| shown.system.to_owned()),
        });
        let mut session = Session {
            approval: Approval::new(&self.rules, shown.tools, shown.toolbox, person)?,
            view: View::new(printer, shown.chat, shows),
            talk,
            header,
            trace: None,
            reminds: shown.settings.reminder && !is_typed,
        };
        runtime.block_on(async {
            let names =
                shown.tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.server_name.as_str());
            unless_interrupted(async { Ok(session.talk.connect(names).await?) }).await?;
            shown.play(&mut session, script).await
        })
    }

    /// The model behind an endpoint, if one is named.
    fn endpoint(&self) -> Result<Option<EndpointPolicy>, TalkError> {
        let url = self.subject.clone();
        match (self.model.clone(), is_url(&url)) {
            (Some(model), true) => Ok(Some(EndpointPolicy::new(url, model, self.api_key_env.clone()))),
            (None, true) => Err(TalkError::NoModelName { url }),
            (Some(_), false) => Err(TalkError::NoEndpoint { subject: url }),
            (None, false) => Ok(None),
        }
    }

    async fn open_endpoint(&self, endpoint: &EndpointPolicy) -> Result<(Setting, OpenEndpoint)> {
        let server = self.server();
        let mut setting = self.named(&server).without_policy().await?;
        self.set(&mut setting.settings);
        let tools = setting.tools.clone().ok_or_else(|| self.no_server())?;
        let open = OpenEndpoint::open(&setting.context, endpoint, &tools, &setting.settings)?;
        Ok((setting, open))
    }

    async fn open(&self) -> Result<(Subject, OpenAgent)> {
        let server = self.server();
        let mut subject = self.named(&server).find().await?;
        let Setting { tools, settings, context, .. } = &mut subject.setting;
        self.set(settings);
        let tools = tools.as_deref().ok_or_else(|| self.no_server())?;
        let open = OpenAgent::open(context, &subject.policy, tools, settings).await?;
        Ok((subject, open))
    }

    /// The words that name a server.
    fn server(&self) -> Vec<String> {
        self.server.iter().chain(&self.command).cloned().collect()
    }

    fn named<'a>(&'a self, server: &'a [String]) -> Named<'a> {
        Named {
            subject: &self.subject,
            policy: self.policy.as_deref(),
            server,
            server_name: self.name.as_deref(),
            base: None,
            locations: &self.locations,
        }
    }

    fn no_server(&self) -> SubjectError {
        SubjectError::NoServer { model: self.subject.clone() }
    }

    /// Changes what options change.
    fn set(&self, settings: &mut AgentSettings) {
        settings.max_turn_tokens = self.max_tokens.map_or(settings.max_turn_tokens, |most| most as usize);
        settings.result_chars = self.truncate.map_or(settings.result_chars, |most| most as usize);
        settings.system = self.system.clone().or(settings.system.take());
    }
}

fn say_notes(notes: &Notes, printer: Printer) {
    notes.take().iter().for_each(|note| printer.say(&format!("note: {}", visible(note))));
}

/// The tasks of a file: lines of text, or of JSON with `task`.
fn tasks(path: &Path) -> Result<Vec<String>, TalkError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| TalkError::Read { path: path.to_owned(), source })?;
    let wrong = |reason: String| TalkError::Tasks { path: path.to_owned(), reason };
    let mut tasks = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("line {}", index + 1);
        tasks.push(match line.trim_start().starts_with('{') {
            false => line.trim().to_owned(),
            true => {
                let item: Value =
                    serde_json::from_str(line).map_err(|cause| wrong(format!("{}: {cause}", place())))?;
                let task = item["task"].as_str().map(str::to_owned);
                task.ok_or_else(|| wrong(format!("{} has no text `task`", place())))?
            }
        });
    }
    if tasks.is_empty() { Err(wrong("it is empty".into())) } else { Ok(tasks) }
}

/// Conversations with what follows them.
struct Session<S: ConversationSource> {
    talk: Talk<S>,
    approval: Approval,
    view: View,
    header: Option<Header>,
    /// Of the current conversation.
    trace: Option<Trace>,
    reminds: bool,
}

impl<S: ConversationSource> Session<S> {
    /// What comes of a message; none if the user cancels it.
    async fn message(&mut self, text: &str) -> Result<Option<Reply>> {
        if self.trace.is_none() {
            self.trace = self.header.as_ref().map(Trace::create).transpose()?;
        }
        self.view.begin();
        let mut following = Following {
            approval: &mut self.approval,
            view: &mut self.view,
            trace: self.trace.as_mut(),
            failed: None,
            cancel: CancellationToken::new(),
        };
        let cancel = following.cancel.clone();
        let reply = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            _ = tokio::signal::ctrl_c() => None,
            reply = self.talk.reply(text, self.reminds, &mut following) => Some(reply),
        };
        let failed = following.failed.take();
        self.view.end();
        if let (Some(trace), Some(history)) = (&mut self.trace, self.talk.history()) {
            trace.sync(&history.messages)?;
        }
        match failed {
            Some(failed) => Err(failed.into()),
            None => reply.transpose(),
        }
    }

    fn reset(&mut self) {
        self.talk.reset();
        self.trace = None;
    }
}

/// Follows the turns of a reply.
struct Following<'a> {
    approval: &'a mut Approval,
    view: &'a mut View,
    trace: Option<&'a mut Trace>,
    failed: Option<TalkError>,
    cancel: CancellationToken,
}

impl Following<'_> {
    /// Cancels the reply if a message cannot be written.
    fn record(&mut self, write: impl FnOnce(&mut Trace) -> Result<(), TalkError>) {
        if let Some(Err(failed)) = self.trace.as_mut().map(|trace| write(trace)) {
            self.failed = Some(failed);
            self.cancel.cancel();
        }
    }
}

impl Hooks for Following<'_> {
    const SEES_TOKENS: bool = true;

    fn token(&mut self, token: u32) {
        self.view.token(token);
    }

    fn growing_text(&mut self, reasoning: &str, text: &str) {
        self.view.growing_text(reasoning, text);
    }

    fn text(&mut self, reasoning: &str, text: &str) {
        self.view.whole_turn(reasoning, text);
    }

    async fn permit(
        &mut self,
        tool: &str,
        arguments: &mut Map<String, Value>,
        history: &History,
    ) -> Result<(), Refusal> {
        self.record(|trace| trace.sync(&history.messages));
        self.view.call(tool, arguments);
        // The thread waits for a person; nothing else is going on.
        match tokio::task::block_in_place(|| self.approval.decide(tool, arguments)) {
            Ok(decided) => decided,
            Err(Cancelled) => {
                self.cancel.cancel();
                std::future::pending().await
            }
        }
    }

    fn answered(&mut self, messages: &[Message]) {
        let Some(result) = messages.last() else { return };
        self.record(|trace| trace.push(result));
        self.view.result(result);
    }
}

const HELP: &str = "\
/tools   the tools, and which calls are made without asking
/reset   another conversation, in a fresh state of the servers
/quit    the end, as Ctrl-C or Ctrl-D at an empty prompt
A backslash at the end of a line continues a message. Ctrl-C stops an answer.";

/// Prints what comes of a script.
struct Shown<'a> {
    printer: Printer,
    label: &'a str,
    tools: &'a [Tool],
    toolbox: &'a Toolbox,
    settings: &'a AgentSettings,
    system: &'a str,
    /// None for a model behind an endpoint.
    chat: Option<&'a ChatFormat>,
}

impl Shown<'_> {
    async fn play<S: ConversationSource>(
        &self,
        session: &mut Session<S>,
        script: &mut Script,
    ) -> Result<Outcome> {
        let printer = self.printer;
        match script {
            Script::Once(text) => {
                let reply = session.message(text).await?.ok_or(Interrupted)?;
                match printer.format {
                    OutputFormat::Json => printer.json(&self.json(text, &reply, session)),
                    OutputFormat::Human => self.show(text, &reply, session),
                }
                Ok(if reply.answer.is_some() { Outcome::Success } else { Outcome::Failed })
            }
            Script::Tasks(texts) => self.all(session, texts, true).await,
            Script::Replay(texts) => self.all(session, texts, false).await,
            Script::Typed(input) => self.typed(session, input).await,
        }
    }

    /// Says all of these, each in a conversation of its own or in one.
    async fn all<S: ConversationSource>(
        &self,
        session: &mut Session<S>,
        texts: &[String],
        apart: bool,
    ) -> Result<Outcome> {
        let mut is_answered = true;
        for text in texts {
            if apart {
                session.reset();
            }
            if self.printer.format == OutputFormat::Human {
                self.printer.data(&format!("> {}", visible(text)));
            }
            let reply = session.message(text).await?.ok_or(Interrupted)?;
            is_answered &= reply.answer.is_some();
            self.show(text, &reply, session);
        }
        Ok(if is_answered { Outcome::Success } else { Outcome::Failed })
    }

    fn json<S: ConversationSource>(&self, text: &str, reply: &Reply, session: &Session<S>) -> Value {
        let mut json = json!({"policy": self.label, "message": text});
        if let (Value::Object(all), Value::Object(of_reply)) = (&mut json, reply.json()) {
            all.extend(of_reply);
        }
        json["trace"] = session.trace.as_ref().map(|trace| trace.path().display().to_string()).into();
        json
    }

    async fn typed<S: ConversationSource>(
        &self,
        session: &mut Session<S>,
        input: &mut Input,
    ) -> Result<Outcome> {
        let printer = self.printer;
        printer.say(&format!("{}; /help says what else can be typed", visible(self.label)));
        loop {
            let Some(text) = tokio::task::block_in_place(|| input.next())? else {
                return Ok(Outcome::Success);
            };
            match text.trim() {
                "" => continue,
                "/quit" | "/exit" => return Ok(Outcome::Success),
                "/help" => printer.say(HELP),
                "/tools" => printer.say(&self.tools(&session.approval)),
                "/reset" => session.reset(),
                text => match session.message(text).await {
                    Ok(Some(reply)) => self.show(text, &reply, session),
                    Ok(None) if matches!(input, Input::Pipe(_)) => return Err(Interrupted.into()),
                    Ok(None) => printer.say("stopped; the message is taken back"),
                    Err(failure) if is_of_conversation(&failure) => printer.error(&failure),
                    Err(failure) => return Err(failure),
                },
            }
        }
    }

    /// Prints what came of a message, as far as it was not shown while it was sampled.
    fn show<S: ConversationSource>(&self, text: &str, reply: &Reply, session: &Session<S>) {
        if self.printer.format == OutputFormat::Json {
            return self.printer.data(&self.json(text, reply, session).to_string());
        }
        match &reply.answer {
            Some(answer) if !session.view.has_shown(answer) => self.printer.data(&visible(answer)),
            Some(_) => {}
            None => self.remark(reply),
        }
    }

    fn tools(&self, approval: &Approval) -> String {
        let tools = self.tools.iter().filter(|tool| !tool.synthetic);
        let line = |tool: &Tool| {
            let about = tool.description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            format!("{} ({})  {}", visible(&tool.name), approval.of_tool(&tool.name), visible(about.trim()))
        };
        tools.map(line).collect::<Vec<_>>().join("\n")
    }

    /// Says why there is no answer.
    fn remark(&self, reply: &Reply) {
        let settings = self.settings;
        self.printer.say(&match (reply.end, &reply.lost) {
            (_, Some(cause)) => format!(
                "lost the server: {}\nthe message is taken back; the next one finds the server in a fresh state",
                visible(&cause.to_string())
            ),
            (End::OutOfTurns, _) => format!("stopped after {} turns (max_turns)", settings.max_turns),
            (End::OutOfTurnTokens, _) => {
                let most = settings.max_turn_tokens;
                format!("cut after {most} tokens (max_turn_tokens); `--max-tokens` allows more")
            }
            (End::OutOfTokens, _) => {
                format!("the context is full ({} tokens); /reset starts another conversation", reply.context)
            }
            _ => "no answer".to_owned(),
        });
    }
}

/// Whether the chat goes on after this.
fn is_of_conversation(failure: &Failure) -> bool {
    let cause: &dyn std::error::Error = failure.cause();
    cause.is::<OneMessage>() || cause.is::<LlmError>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_lines_of_text_or_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.txt");
        let check = |text: &str| {
            std::fs::write(&path, text).unwrap();
            tasks(&path).map_err(|error| error.to_string())
        };
        assert_eq!(
            check("How many?\n\n{\"task\": \"Who?\", \"answer\": 1}\n").unwrap(),
            ["How many?", "Who?"]
        );
        assert!(check("ok\n{\"task\": 7}").unwrap_err().ends_with("line 2 has no text `task`"));
        assert!(check("{").unwrap_err().contains("line 1: "));
        assert!(check("\n").unwrap_err().ends_with("it is empty"));
    }

    #[test]
    fn a_temperature_is_a_number_of_0_or_more() {
        assert_eq!(temperature("0.7"), Ok(0.7));
        assert!(temperature("-1").is_err() && temperature("nan").is_err() && temperature("x").is_err());
    }
}
