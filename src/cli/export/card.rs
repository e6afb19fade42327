//! What a program needs that uses an exported policy of a run: `agent.json`, and a README that is also the card of a hub.

use std::{fmt::Write as _, path::Path};

use serde_json::{Value, json};

use crate::{
    agent::{AgentSettings, REMINDER, Repeats, Toolbox, told},
    chat::{Chat, declared},
    cli::subject::{Setting, Subject},
    data::{self, Tool, VerdictRow},
    error::{At, Result},
    eval,
    model::{ModelConfig, ModelError},
    report::escape::visible,
    secret,
    stage::{card::SYSTEM, policy::PolicyFolder},
    text,
};

/// The form of the weights that a card describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An adapter for PEFT.
    Adapter,
    /// A folder for Transformers and vLLM.
    Model,
    /// A GGUF file with the whole model.
    GgufModel,
    GgufAdapter,
}

/// The card of a policy.
pub struct Card<'s> {
    pub subject: &'s Subject,
    pub form: Form,
    /// What the folder is called.
    pub name: &'s str,
    /// The base model's name on the hub, if it has one.
    pub base: Option<&'s str>,
    /// Whether a copy of the base is in the folder.
    pub has_base: bool,
    /// The file of weights, if there is one to name.
    pub file: Option<&'s str>,
    /// Whether its weights were rounded to fewer bits than were examined.
    pub is_rounded: bool,
}

impl Card<'_> {
    /// Writes `agent.json` and `README.md` into the folder, without what looks like a secret. Returns the files that had some.
    ///
    /// # Errors
    /// If the tools of the run cannot be read, or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<Vec<&'static str>> {
        let Subject { setting: Setting { tools: Some(table), settings, context, .. }, policy, .. } =
            self.subject
        else {
            return Ok(Vec::new());
        };
        let tools: Vec<Tool> = data::read(table)?;
        let toolbox = Toolbox::of_table(table, &tools)?;
        let system = settings.system_prompt(context.text(SYSTEM), toolbox.functions())?;
        let policy = PolicyFolder::open(policy, context)?;
        let chat = Chat::load(policy.model()).at(|| policy.model().display().to_string())?;
        let config = ModelConfig::load(policy.model())?;
        let declared: Vec<Value> = toolbox.functions().iter().map(declared).collect();
        let mut agent = agent(settings, config.context, &system, &declared);
        let readme = self.readme(&tools, &chat, &config)?;
        let shown = secret::concealed(&readme);
        let mut concealed = Vec::new();
        concealed.extend(secret::conceal(&mut agent).then_some("agent.json"));
        concealed.extend((shown != readme).then_some("README.md"));
        for (name, text) in [("agent.json", &*format!("{agent:#}\n")), ("README.md", &shown)] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|source| ModelError::Write { path, source })?;
        }
        Ok(concealed)
    }

    fn readme(&self, tools: &[Tool], chat: &Chat, config: &ModelConfig) -> Result<String> {
        let Self { subject, form, name, base, .. } = self;
        let mut text = String::from("---\n");
        if let Some(base) = base {
            let relation = match form {
                Form::Adapter | Form::GgufAdapter => "adapter",
                Form::Model | Form::GgufModel => "finetune",
            };
            text += &format!("base_model: {base}\nbase_model_relation: {relation}\n");
        }
        let library = match form {
            Form::Adapter => "library_name: peft\n",
            Form::Model => "library_name: transformers\n",
            Form::GgufModel | Form::GgufAdapter => "",
        };
        // A server says its own name.
        let about = subject.about.description(tools);
        let about = visible(&about).replace('\n', " ");
        text +=
            &format!("{library}pipeline_tag: text-generation\ntags:\n- mcp\n- tool-use\n- mcprl\n---\n\n");
        text += &format!("# {name}\n\n{about}\n\n");
        let mut is_measured = false;
        if let Some((verdict, policy)) = &subject.about.verdict {
            text += &measured(&data::read(verdict)?, policy);
            is_measured = !self.is_rounded;
            if self.is_rounded {
                text += "This was measured before the weights were rounded for this file, which changes the policy.\n\n";
            }
        }
        text += "## Use\n\n";
        text += &self.use_of(chat, config);
        let same = if is_measured {
            "A client that does the same gets what was measured"
        } else {
            "A client does the same"
        };
        text += &format!(
            "\n## What a client does\n\n\
             mcprl plays it with the system prompt, the tools and the limits in `agent.json`. {same}:\n\n{}",
            rules(&subject.setting.settings)
        );
        Ok(text)
    }

    /// Commands.
    fn use_of(&self, chat: &Chat, config: &ModelConfig) -> String {
        let Self { form, name, base, has_base, file, subject, .. } = self;
        let base = if *has_base { "./base" } else { base.unwrap_or("BASE") };
        let context = config.context.min(subject.setting.settings.max_episode_tokens.next_power_of_two());
        let parser = chat.vllm_parser();
        let vllm = |model: &str| {
            format!(
                "# vLLM\nvllm serve {model} --max-model-len {context} \\\n    \
                 --enable-auto-tool-choice --tool-call-parser {parser}\n"
            )
        };
        let mcprl = |policy: &str| {
            format!(
                "# mcprl, with the sections [server] and [agent] of the run file\n\
                 mcprl serve {policy} --server run.toml\n\n"
            )
        };
        let file = file.unwrap_or("MODEL.gguf");
        let commands = match form {
            Form::Adapter => {
                mcprl(&format!(". --base {base}"))
                    + &vllm(&format!("{base} --enable-lora --lora-modules {name}=."))
            }
            Form::Model => mcprl(".") + &vllm(&format!(". --served-model-name {name}")),
            Form::GgufModel => {
                mcprl(file)
                    + &format!(
                        "# llama.cpp\nllama-server -m {file} --jinja -c {context}\n\n\
                         # Ollama\nollama create {name} -f Modelfile\n"
                    )
            }
            Form::GgufAdapter => format!(
                "# llama.cpp, with a GGUF file of the base\n\
                 llama-server -m BASE.gguf --lora {file} --jinja -c {context}\n"
            ),
        };
        format!("```sh\n{commands}```\n")
    }
}

/// The table of the verdict, in which this policy has a name.
fn measured(rows: &[VerdictRow], own: &str) -> String {
    let Some(headline) = eval::headline(rows) else { return String::new() };
    let percent = |share: f64| text::percent(share, 1);
    let mut text = format!(
        "## Measured\n\nSuccess in % on {} held-out tasks ({}), with 95 % intervals. This policy is `{own}`:\n\n\
         | policy | success | 95 % |\n|---|---|---|\n",
        headline.tasks, headline.mode,
    );
    for standing in &headline.policies {
        let interval = format!("{} to {}", percent(standing.low), percent(standing.high));
        _ = writeln!(text, "| {} | {} | {interval} |", standing.policy, percent(standing.success));
    }
    text.push('\n');
    for difference in &headline.differences {
        _ = writeln!(
            text,
            "- {} against {}: {} points [{}, {}]",
            difference.policy,
            difference.to,
            eval::points(difference.gain, 1),
            eval::points(difference.low, 1),
            eval::points(difference.high, 1)
        );
    }
    text.push('\n');
    text
}

/// How a client behaves as mcprl does.
fn rules(settings: &AgentSettings) -> String {
    let AgentSettings { max_turns, max_turn_tokens, max_calls, result_chars, .. } = settings;
    let mut rules = vec![
        "The first message is `system`, the second the task. All of `tools` are offered, in their order.".to_owned(),
        "`complete_task` is a tool of the client: a call of it ends the conversation, and its `answer` is the answer.".to_owned(),
        format!(
            "A result of more than {result_chars} characters keeps its beginning and its end, with `[N characters left out]` between \
             them. Otherwise results of the server are given as they are, errors too."
        ),
        "Arguments that do not fit a tool's schema are not sent: the result is `error: ` and what is wrong.".to_owned(),
        format!("A conversation has at most {max_turns} turns of {max_turn_tokens} tokens, and {max_calls} calls."),
        "Temperature 0, or 1 as in training.".to_owned(),
    ];
    if settings.reminder {
        rules.push(format!("The first turn without a call is answered: \"{REMINDER}\""));
    }
    if settings.repeats == Repeats::Tell {
        rules.push(format!(
            "A call of the same tool with the same arguments as an earlier one, and the same result, is answered: {}",
            json!(told("RESULT", true))
        ));
    }
    rules.iter().map(|rule| format!("- {rule}\n")).collect()
}

fn agent(settings: &AgentSettings, context: usize, system: &str, tools: &[Value]) -> Value {
    json!({
        "system": system,
        "tools": tools,
        "answer_tool": "complete_task",
        "max_turns": settings.max_turns,
        "max_turn_tokens": settings.max_turn_tokens,
        "max_episode_tokens": settings.max_episode_tokens.min(context),
        "max_calls": settings.max_calls,
        "result_chars": settings.result_chars,
        "reminder": settings.reminder.then_some(REMINDER),
        "repeats": (settings.repeats == Repeats::Tell).then(|| told("RESULT", true)),
    })
}
