//! A language model that the engine runs, as a judge or a generator: the input `local_model` of a stage.
//!
//! A reply depends on the conversation, its number among the draws for it, the model and the stage's seed. It does not
//! depend on what else is asked, so the number of requests in flight changes no reply.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::json;

use super::{
    Context,
    memory::Load,
    policy::{self, PolicyFolder},
    preflight::{ExpectedPolicy, Preflight, PreflightContext},
};
use crate::{
    chat::PlainChat,
    engine::{EngineError, Footprint, Sampled, Sampler, Sampling, Stop},
    error::{At, Diagnostic, Result},
    guide::Guide,
    hash::{Digest, Encoder},
    llm::{self, Completion, LanguageModel, LlmError, Probability, Reply, Request, Tokens},
    usage::Usage,
};

/// The input of a stage that holds the model.
pub const ROLE: &str = "local_model";
/// Tokens among which a yes-or-no question's answers are looked for.
const CONSIDERED: usize = 20;

/// How a stage samples from the model.
#[derive(Debug, Clone, Copy)]
pub struct LocalSettings {
    pub temperature: f64,
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// Requests in flight.
    pub concurrency: usize,
}

impl LocalSettings {
    /// The engine's memory for replies of this model. A prompt may fill the context.
    pub fn footprint(&self, load: &Load<'_>, model: &ExpectedPolicy) -> Footprint {
        load.sampling(model, self.concurrency.max(1), model.config.context)
    }

    fn sampling(&self) -> Sampling {
        #[expect(clippy::cast_possible_truncation, reason = "a temperature needs few digits")]
        Sampling { temperature: self.temperature as f32, ..Sampling::GREEDY }
    }
}

/// Whether the stage has a model of its own.
pub fn is_given(context: &Context) -> bool {
    context.has(ROLE)
}

#[derive(Debug, PartialEq, Eq, thiserror::Error, Diagnostic)]
#[diagnostic(area = "local_model", class = usage)]
pub enum LocalModelError {
    #[error("both `{ROLE}` and `{param}` are set")]
    #[hint = "remove `{ROLE}` to ask an endpoint, or `base_url` and `model` to ask the engine's model"]
    TwoModels { param: &'static str },
    #[error("`{param}` has no effect: it is for endpoints, and `{ROLE}` is set")]
    #[hint = "remove `{param}`"]
    Ignored { param: &'static str },
    #[error("`{ROLE}` is set, but the stage asks no language model")]
    #[hint = "remove `{ROLE}`, so that the stage does not wait for it"]
    Unused,
    #[error("the instructions alone have {tokens} tokens, the context of `{ROLE}` is {context}")]
    #[hint = "use a model with a longer context"]
    NoRoom { tokens: usize, context: usize },
}

/// A parameter, and whether it is set.
pub type IsSet = (&'static str, bool);

/// Checks a stage with a local model: that no other model is set, what has no effect, and whether prompts that begin with
/// these instructions have room.
pub fn check(
    preflight: &mut Preflight,
    context: &PreflightContext<'_>,
    models: &[IsSet],
    ignored: &[IsSet],
    instructions: &[&str],
) {
    for (param, _) in models.iter().filter(|(_, is_set)| *is_set) {
        preflight.error(param, LocalModelError::TwoModels { param });
    }
    for (param, _) in ignored.iter().filter(|(_, is_set)| *is_set) {
        preflight.note(param, LocalModelError::Ignored { param });
    }
    let Some(model) = context.policy(ROLE) else { return };
    let Some(folder) = model.folder.as_deref() else { return };
    let limit = model.config.context;
    // A token is at least a byte.
    for text in instructions.iter().filter(|text| text.len() >= limit) {
        let Ok(vocabulary) = context.vocabulary(folder) else { return };
        let tokens = vocabulary.encode_text(text).len();
        if tokens >= limit {
            preflight.error(ROLE, LocalModelError::NoRoom { tokens, context: limit });
            return;
        }
    }
}

/// A model of the engine, ready to reply.
pub struct LocalModel {
    digest: Digest,
    sampler: Sampler,
    chat: PlainChat,
    settings: LocalSettings,
    seed: u64,
    usage: Mutex<llm::Usage>,
    has_replied: AtomicBool,
}

impl LocalModel {
    /// Loads the stage's model.
    ///
    /// # Errors
    /// If it cannot be loaded, or its chat template cannot be used.
    pub async fn open(context: &Context, settings: LocalSettings) -> Result<Self> {
        let input = context.input(ROLE)?;
        let at = || format!("`{ROLE}`");
        let folder = PolicyFolder::open(input, context).at(at)?;
        let vocabulary = context.models.vocabulary(folder.model_digest(), folder.model()).at(at)?;
        let chat = PlainChat::load_over(vocabulary, folder.model()).at(at)?;
        let peak = settings.footprint(&Load::of(&context.engine), &folder.expected().at(at)?);
        let sampler = policy::start(folder, context, &peak).await.at(at)?;
        Ok(Self {
            digest: input.digest,
            sampler,
            chat,
            settings,
            seed: context.seed,
            usage: Mutex::default(),
            has_replied: AtomicBool::default(),
        })
    }

    /// A handle to end the model's threads with, after the model itself is dropped.
    pub fn sampler(&self) -> Sampler {
        self.sampler.clone()
    }

    /// Ends the model's threads, which frees their memory.
    pub async fn close(self) {
        self.sampler.close().await;
    }

    async fn sample(
        &self,
        request: &Request<'_>,
        max_tokens: usize,
        alternatives: usize,
        guide: Option<Box<dyn Guide>>,
    ) -> Result<(Sampled, Tokens), LlmError> {
        let messages = request.messages.iter().map(|one| (one.role.as_str(), one.content.as_str()));
        let prompt = self
            .chat
            .prompt(messages, request.shared)
            .map_err(|cause| LlmError::Local { cause: cause.into(), of_request: false })?;
        let prompt_tokens = prompt.iter().map(|piece| piece.len()).sum::<usize>() as u64;
        self.count(|usage| usage.requests += 1);
        let sequence = self.sampler.open(prompt, self.settings.sampling(), self.seed_of(request));
        let mut sequence = sequence.with_alternatives(alternatives).guided(guide);
        let sampled = sequence.turn(&[], self.chat.stop(), max_tokens).await.map_err(refusal)?;
        self.has_replied.store(true, Ordering::Relaxed);
        let tokens = Tokens { prompt: prompt_tokens, completion: sampled.tokens.len() as u64 };
        self.count(|usage| {
            usage.prompt_tokens += tokens.prompt;
            usage.completion_tokens += tokens.completion;
        });
        Ok((sampled, tokens))
    }

    async fn reply(&self, request: &Request<'_>) -> Result<Reply, LlmError> {
        // Without one, because the bytes of the tokens are not known or the schema cannot be kept, the reply is checked as any other.
        let guide = request.schema.and_then(|schema| self.chat.guide(schema).ok());
        let read = match &guide {
            // It begins with its first token, and what spells a tag is text.
            Some(_) => PlainChat::text,
            None => PlainChat::reply,
        };
        let guide = guide.map(|guide| Box::new(guide) as Box<dyn Guide>);
        let (sampled, tokens) = self.sample(request, self.settings.max_tokens as usize, 0, guide).await?;
        Ok(Reply {
            text: read(&self.chat, &sampled.tokens),
            is_cut: sampled.stop != Stop::Token,
            tokens: Some(tokens),
        })
    }

    /// Of the likeliest first tokens of a reply, the share of those that say yes among those that say yes or no.
    async fn yes(&self, request: &Request<'_>) -> Result<f64, LlmError> {
        let (sampled, _) = self.sample(request, 1, CONSIDERED, None).await?;
        let likeliest = sampled.alternatives.into_iter().flatten();
        let (mut yes, mut no) = (0.0, 0.0);
        for (token, logprob) in likeliest {
            let word = self.chat.reply(&[token]);
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            if word.eq_ignore_ascii_case("yes") {
                yes += f64::from(logprob).exp();
            } else if word.eq_ignore_ascii_case("no") {
                no += f64::from(logprob).exp();
            }
        }
        match yes + no > 0.0 {
            true => Ok(yes / (yes + no)),
            false => Err(LlmError::Undecided { considered: CONSIDERED }),
        }
    }

    fn count(&self, add: impl FnOnce(&mut llm::Usage)) {
        add(&mut self.usage.lock());
    }

    fn seed_of(&self, request: &Request<'_>) -> u64 {
        let mut encoder = Encoder::new("mcprl local reply v1");
        encoder.number(self.seed).number(request.draw).json(&json!(request.messages)).finish().seed()
    }
}

/// A conversation that is too long is the request's fault; everything else is the model's.
fn refusal(error: EngineError) -> LlmError {
    match error {
        EngineError::Context { tokens, context } => LlmError::TooLong { tokens, context },
        error => {
            let of_request = matches!(error, EngineError::Cache { .. } | EngineError::Guide { .. });
            LlmError::Local { of_request, cause: error.into() }
        }
    }
}

impl LanguageModel for LocalModel {
    fn identify(&self, question: &mut Encoder) {
        question.text(ROLE).digest(&self.digest).text(&self.settings.temperature.to_string());
    }

    fn complete<'a>(&'a self, request: &'a Request<'a>) -> Completion<'a> {
        Box::pin(self.reply(request))
    }

    fn probability<'a>(&'a self, request: &'a Request<'a>) -> Probability<'a> {
        Box::pin(self.yes(request))
    }

    fn keeps_to_schemas(&self) -> bool {
        true
    }

    fn concurrency(&self) -> usize {
        self.settings.concurrency.max(1)
    }

    fn usage(&self) -> llm::Usage {
        *self.usage.lock()
    }

    fn resources(&self) -> Usage {
        policy::usage(&self.sampler)
    }

    fn has_replied(&self) -> bool {
        self.has_replied.load(Ordering::Relaxed)
    }
}
