//! The thread that decodes all turns of a device's conversations.
//!
//! Prompt pieces and conversations are segments of one tree, each with its keys and values. A step takes the
//! turns with reserved cache memory and runs their waiting tokens through the decoder as one ragged batch. It
//! then samples where a turn needs a token. Conversations that wait for their tools are not in the batch.

mod mixer;
mod schedule;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvError},
    },
};

use candle_core::{Device, Tensor};
use mcprl_base::guide::Guide;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rayon::prelude::*;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use self::mixer::StepMixer;
use super::{
    EngineError, Sampling,
    sampling::likeliest,
    segments::{Segment, Segments},
    size::{STEP_ROWS, logit_rows},
};
use crate::model::{
    Decoder, ModelError, Positions,
    ops::{self, AttentionMask},
};

/// The minimum share of a step's rows for waiting prompts, and for decoding turns if there are that many.
const PROMPT_ROWS: usize = STEP_ROWS / 4;
/// A step of one row takes about as long as one of this many rows: the time to read the weights.
const FEW_ROWS: usize = 64;
/// Number of logits from which threads share the drawing of tokens.
const WORTH_SHARING: usize = 1 << 18;

/// Why a turn's sampling ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stop {
    /// A stop token, the last of `tokens`.
    Token,
    /// `max_new` tokens were sampled.
    #[default]
    Length,
    /// The context is full.
    Context,
}

/// One sampled turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampled {
    pub tokens: Vec<u32>,
    /// Natural log-probabilities at temperature 1, one per token.
    pub logprobs: Vec<f32>,
    /// Per token, the most likely tokens in its place. Empty unless the turn asks for them.
    pub alternatives: Vec<Vec<(u32, f32)>>,
    pub stop: Stop,
}

/// Counters of a policy's tokens.
#[derive(Debug, Default)]
pub struct Usage {
    /// Tokens sampled.
    pub sampled: AtomicU64,
    /// Tokens that went through the decoder, sampled or given. A shared token counts once.
    pub computed: AtomicU64,
    /// Tokens that were recomputed because their keys and values were evicted.
    pub recomputed: AtomicU64,
    /// The most bytes that one worker reserved for keys and values.
    #[cfg(test)]
    pub max_cached: AtomicU64,
}

#[cfg(test)]
impl Usage {
    /// Records the bytes that a worker reserved for keys and values.
    fn record_cache(&self, reserved: usize, bound: usize) {
        assert!(reserved <= bound, "{reserved} bytes are reserved, the bound is {bound}");
        self.max_cached.fetch_max(reserved as u64, Ordering::Relaxed);
    }
}

pub enum Command {
    Open {
        id: u64,
        prompt: Vec<Arc<[u32]>>,
        sampling: Sampling,
        seed: u64,
    },
    /// With `undo_previous`, the caller did not read the result of the previous turn.
    Turn {
        id: u64,
        append: Vec<u32>,
        undo_previous: bool,
        turn: Turn,
    },
    Close {
        id: u64,
    },
}

/// Gets the tokens of a turn one by one, each with its log-probability as in [`Sampled`].
pub type TokenSender = UnboundedSender<(u32, f32)>;

type Reply = oneshot::Sender<Result<Sampled, EngineError>>;

/// A sequence with its unfinished turn.
struct SequenceState {
    segment: usize,
    /// Its segment and the ancestors of that segment, root first.
    path: Arc<[usize]>,
    sampling: Sampling,
    rng: ChaCha8Rng,
    turn: Option<Turn>,
    /// Its number of tokens and its random generator before the last turn.
    before: (usize, ChaCha8Rng),
    /// [`Worker::work`] at the end of its last turn.
    inactive_since: u64,
    /// The last step that computed a token of it.
    last_step: u64,
}

/// A turn to sample, and what of it is sampled.
pub struct Turn {
    pub stop: Vec<u32>,
    pub max_new: usize,
    /// Number of alternatives per token.
    pub alternatives: usize,
    pub guide: Option<Box<dyn Guide>>,
    pub sampled: Sampled,
    pub tokens: Option<TokenSender>,
    pub reply: Reply,
}

impl Turn {
    /// Tokens it may still sample.
    fn remaining(&self) -> usize {
        self.max_new.saturating_sub(self.sampled.tokens.len())
    }
}

pub struct Worker {
    decoder: Arc<Decoder>,
    usage: Arc<Usage>,
    segments: Segments,
    /// By number: older conversations have smaller numbers.
    conversations: BTreeMap<u64, SequenceState>,
    /// Conversations with a turn that has no reserved memory.
    waiting: BTreeSet<u64>,
    /// Conversations with a turn that has reserved memory.
    running: BTreeSet<u64>,
    /// Work done so far, in tokens. A step of fewer than [`FEW_ROWS`] counts as that many.
    work: u64,
    steps: u64,
}

/// A drawn token.
struct Drawn {
    token: u32,
    logprob: f32,
    alternatives: Vec<(u32, f32)>,
}

/// A segment's part in a step.
struct Part {
    /// The segment and its ancestors, root first, possibly with descendants.
    path: Arc<[usize]>,
    /// Index of the segment in the path.
    depth: usize,
    /// The conversation, if the segment belongs to one.
    conversation: Option<u64>,
    rows: Range<usize>,
}

impl Part {
    fn segment(&self) -> usize {
        self.path[self.depth]
    }

    fn path(&self) -> &[usize] {
        &self.path[..=self.depth]
    }
}

impl Worker {
    /// Allows at most this many bytes of keys and values.
    pub fn new(decoder: Arc<Decoder>, usage: Arc<Usage>, bound: usize) -> Self {
        Self {
            segments: Segments::new(&decoder, bound),
            decoder,
            usage,
            conversations: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            work: 0,
            steps: 0,
        }
    }

    /// Runs until every handle is dropped.
    pub fn run(mut self, commands: Receiver<Command>) {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                match commands.recv() {
                    Ok(command) => self.handle(command),
                    Err(RecvError) => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command);
            }
            self.schedule();
            #[cfg(test)]
            self.usage.record_cache(self.segments.reserved(), self.segments.bound);
            if let Err(error) = self.step() {
                self.fail(&error);
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Open { id, prompt, sampling, seed } => {
                let mut pieces: Vec<&[u32]> =
                    prompt.iter().map(AsRef::as_ref).filter(|p| !p.is_empty()).collect();
                // The last token is not shared: its successor is sampled for this conversation only.
                let mut own = Vec::new();
                if !self.fits(&pieces) {
                    // Only the first turn fails.
                    own = std::mem::take(&mut pieces).concat();
                } else if let Some((last, rest)) = pieces.pop().and_then(<[u32]>::split_last) {
                    own.push(*last);
                    pieces.extend((!rest.is_empty()).then_some(rest));
                }
                let mut parent = None;
                for piece in pieces {
                    parent = Some(self.segments.piece(parent, piece));
                }
                let rng = ChaCha8Rng::seed_from_u64(seed);
                let before = (own.len(), rng.clone());
                let segment = self.segments.add(parent, own, Some(id));
                let path = self.segments.path(segment);
                let (turn, inactive_since, last_step) = (None, self.work, 0);
                let conversation =
                    SequenceState { segment, path, sampling, rng, turn, before, inactive_since, last_step };
                self.conversations.insert(id, conversation);
                self.segments.remove_idle();
            }
            Command::Turn { id, append, undo_previous, turn } => {
                if undo_previous {
                    self.cancel(id);
                }
                match self.queue(id, append) {
                    Ok(conversation) => {
                        conversation.turn = Some(turn);
                        self.waiting.insert(id);
                    }
                    // The receiver is gone if the episode was cancelled.
                    Err(error) => _ = turn.reply.send(Err(error)),
                }
            }
            Command::Close { id } => {
                self.cancel(id);
                if let Some(conversation) = self.conversations.remove(&id) {
                    self.segments.remove(conversation.segment);
                }
            }
        }
    }

    fn fits(&self, pieces: &[&[u32]]) -> bool {
        let config = &self.decoder.config;
        let known = |piece: &&[u32]| piece.iter().all(|token| (*token as usize) < config.vocabulary);
        pieces.iter().map(|piece| piece.len()).sum::<usize>() < config.context && pieces.iter().all(known)
    }

    /// Queues a turn's tokens.
    fn queue(&mut self, id: u64, append: Vec<u32>) -> Result<&mut SequenceState, EngineError> {
        let closed = || EngineError::Worker { reason: "the conversation is closed".into() };
        let conversation = self.conversations.get_mut(&id).ok_or_else(closed)?;
        let segment = self.segments.get_mut(conversation.segment).ok_or_else(closed)?;
        conversation.before = (segment.tokens.len(), conversation.rng.clone());
        let (vocabulary, context) = (self.decoder.config.vocabulary, self.decoder.config.context);
        let mut tokens = segment.tokens.iter().chain(&append);
        if let Some(token) = tokens.find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Token { token: *token, vocabulary }.into());
        }
        if segment.tokens.len() + append.len() == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        let tokens = segment.end() + append.len();
        if tokens >= context {
            return Err(EngineError::Context { tokens, context });
        }
        segment.tokens.extend(append);
        Ok(conversation)
    }

    /// Releases a turn's reserved memory when the turn ends or is cancelled.
    fn release(&mut self, id: u64) {
        let (was_waiting, was_running) = (self.waiting.remove(&id), self.running.remove(&id));
        let conversation = self.conversations.get_mut(&id).filter(|_| was_waiting || was_running);
        let Some(conversation) = conversation else { return };
        conversation.inactive_since = self.work;
        if was_running {
            self.segments.unpin(&conversation.path);
            self.segments.shrink(conversation.segment);
        }
    }

    /// Undoes a conversation's last turn, ended or not. Returns the turn if it had not ended.
    fn cancel(&mut self, id: u64) -> Option<Turn> {
        self.release(id);
        let conversation = self.conversations.get_mut(&id)?;
        let segment = self.segments.get_mut(conversation.segment)?;
        let (tokens, rng) = &conversation.before;
        conversation.rng = rng.clone();
        segment.tokens.truncate(*tokens);
        segment.reached = segment.reached.min(*tokens);
        // Keys and values are never truncated, and the next turn needs a token to continue from.
        if segment.computed() >= segment.tokens.len() {
            self.segments.evict(conversation.segment);
        }
        conversation.turn.take()
    }

    /// Reports the failure to every conversation that waits.
    fn fail(&mut self, error: &EngineError) {
        let ids: Vec<u64> = self.running.iter().chain(&self.waiting).copied().collect();
        for turn in ids.into_iter().filter_map(|id| self.cancel(id)).collect::<Vec<_>>() {
            _ = turn.reply.send(Err(EngineError::Worker { reason: error.to_string() }));
        }
        // Some layers may have computed more than others.
        self.segments.evict_all();
    }

    /// The segments of the next step in depth-first order, with the number of rows of each.
    ///
    /// Decoding turns precede prompts and tool results, which get the rest of the step. A long prompt
    /// therefore delays others by at most one step. If less than [`PROMPT_ROWS`] would remain, turns
    /// alternate.
    fn parts(&mut self) -> Vec<Part> {
        let (mut decoding, mut prompts) = (Vec::new(), Vec::new());
        for id in &self.running {
            let Some(conversation) = self.conversations.get(id) else { continue };
            let mut waiting =
                conversation.path.iter().map(|number| self.segments.get(*number).map_or(0, Segment::waiting));
            let own = waiting.next_back();
            match own == Some(1) && waiting.all(|tokens| tokens == 0) {
                true => decoding.push((conversation.last_step, *id)),
                false => prompts.push(*id),
            }
        }
        let most = STEP_ROWS - if prompts.is_empty() { 0 } else { PROMPT_ROWS };
        if decoding.len() > most {
            decoding.sort_unstable();
            decoding.truncate(most);
        }
        self.steps += 1;
        let mut parts = Vec::with_capacity(decoding.len() + 2 * prompts.len());
        for (_, id) in &decoding {
            let Some(conversation) = self.conversations.get_mut(id) else { continue };
            conversation.last_step = self.steps;
            let path = conversation.path.clone();
            parts.push(Part { depth: path.len() - 1, path, conversation: Some(*id), rows: 0..1 });
        }
        let mut free = STEP_ROWS - parts.len();
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for id in prompts {
            let Some(conversation) = self.conversations.get(&id) else { continue };
            for (depth, number) in conversation.path.iter().enumerate() {
                let waiting = self.segments.get(*number).map_or(0, Segment::waiting);
                let rows = match taken.get(number) {
                    Some(rows) => *rows,
                    None => {
                        let rows = waiting.min(free);
                        if rows > 0 {
                            let path = conversation.path.clone();
                            let conversation = (depth + 1 == path.len()).then_some(id);
                            parts.push(Part { path, depth, conversation, rows: 0..rows });
                            taken.insert(*number, rows);
                            free -= rows;
                        }
                        rows
                    }
                };
                if rows < waiting {
                    break;
                }
            }
        }
        parts.sort_by(|a, b| a.path().cmp(b.path()));
        let mut start = 0;
        for part in &mut parts {
            part.rows = start..start + part.rows.len();
            start = part.rows.end;
        }
        parts
    }

    /// Computes waiting tokens, and samples for each conversation whose tokens are complete.
    fn step(&mut self) -> Result<(), EngineError> {
        let parts = self.parts();
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        // Every segment on a path, with the rows below it, by depth: parents precede their children.
        let mut covered: Vec<Vec<(usize, Range<usize>)>> = Vec::new();
        let mut recomputed = 0;
        for part in &parts {
            let Some(segment) = self.segments.get_mut(part.segment()) else { continue };
            let (start, end) = (segment.computed(), segment.computed() + part.rows.len());
            recomputed += segment.reached.min(end) - segment.reached.min(start);
            segment.reached = segment.reached.max(end);
            positions.extend((start..end).map(|at| (segment.first + at) as u32));
            tokens.extend(&segment.tokens[start..end]);
            for (depth, number) in part.path().iter().enumerate() {
                if covered.len() == depth {
                    covered.push(Vec::new());
                }
                match covered[depth].last_mut().filter(|(last, _)| last == number) {
                    Some((_, rows)) => rows.end = part.rows.end,
                    None => covered[depth].push((*number, part.rows.clone())),
                }
            }
        }
        if tokens.is_empty() {
            return Ok(());
        }
        let decoder = self.decoder.clone();
        let placement = decoder.placement();
        // What the layers of a device share.
        let shared = placement.each(|layer| {
            (Positions::new(&positions), AttentionMask::new(decoder.kv_format(layer)), OnceCell::new())
        });
        let mut x = decoder.embed(&tokens, &positions)?;
        for layer in 0..decoder.config.layers {
            let (positions, mask, delta_plan) = &shared[placement.index(layer)];
            let (segments, values) = (&mut self.segments, positions.values);
            let mut mixer = StepMixer {
                layer,
                parts: &parts,
                covered: &covered,
                segments,
                positions: values,
                mask,
                delta_plan,
            };
            x = decoder.layer(layer, x, positions, &mut mixer)?.output;
        }
        self.work += tokens.len().max(FEW_ROWS) as u64;
        self.usage.computed.fetch_add((tokens.len() - recomputed) as u64, Ordering::Relaxed);
        self.usage.recomputed.fetch_add(recomputed as u64, Ordering::Relaxed);
        #[cfg(test)]
        assert!(self.segments.cached_bytes() <= self.segments.reserved(), "more is cached than reserved");
        self.sample(&parts, &x)
    }

    /// Draws the next token of every turn whose tokens are all computed.
    fn sample(&mut self, parts: &[Part], x: &Tensor) -> Result<(), EngineError> {
        let complete =
            |part: &&Part| self.segments.get(part.segment()).is_some_and(|segment| segment.waiting() == 0);
        let last_row = |part: &Part| Some((part.conversation?, part.rows.end - 1));
        let sampled: Vec<(u64, usize)> = parts.iter().filter(complete).filter_map(last_row).collect();
        for block in sampled.chunks(logit_rows(&self.decoder.config, self.decoder.by_kernels())) {
            let rows: Vec<usize> = block.iter().map(|(_, row)| *row).collect();
            let x = ops::move_to(&ops::gather(x, &rows)?, self.decoder.device())?;
            let (_, logits) = self.decoder.logits(&x)?;
            #[cfg(feature = "cuda")]
            if let Some(drawn) = self.draw_on_device(block, &logits)? {
                block.iter().zip(drawn).for_each(|((id, _), drawn)| self.add_token(*id, drawn));
                continue;
            }
            let logits = logits.to_device(&Device::Cpu)?;
            let logits = ops::values(&logits)?;
            for (id, drawn) in self.draw(block, &logits) {
                self.add_token(id, drawn);
            }
        }
        Ok(())
    }

    /// Draws where the logits are, if a kernel can: from all tokens, without alternatives and guide.
    #[cfg(feature = "cuda")]
    fn draw_on_device(
        &mut self,
        block: &[(u64, usize)],
        logits: &Tensor,
    ) -> Result<Option<Vec<Result<Drawn, EngineError>>>, EngineError> {
        let simple = |(id, _): &(u64, usize)| {
            let conversation = self.conversations.get(id)?;
            let is_plain = |turn: &Turn| turn.alternatives == 0 && turn.guide.is_none();
            (conversation.turn.as_ref().is_none_or(is_plain) && conversation.sampling.is_unfiltered())
                .then_some(())
        };
        if !ops::cuda::takes(logits) || !block.iter().all(|of| simple(of).is_some()) {
            return Ok(None);
        }
        let (mut draws, mut temperatures) = (Vec::new(), Vec::new());
        for (id, _) in block {
            let Some(conversation) = self.conversations.get_mut(id) else { continue };
            let temperature = conversation.sampling.temperature;
            temperatures.push(temperature);
            draws.push(if temperature > 0.0 { mcprl_base::random::unit(&mut conversation.rng) } else { 0.0 });
        }
        let (tokens, logprobs) = ops::cuda::draw(logits, draws, temperatures)?;
        let drawn = |(token, logprob)| Ok(Drawn { token, logprob, alternatives: Vec::new() });
        Ok(Some(tokens.into_iter().zip(logprobs).map(drawn).collect()))
    }

    /// Draws a token for each of these conversations, each from one row of logits.
    fn draw(&mut self, block: &[(u64, usize)], logits: &[f32]) -> Vec<(u64, Result<Drawn, EngineError>)> {
        let rows = logits.chunks_exact(self.decoder.config.vocabulary);
        let rows: BTreeMap<u64, &[f32]> = block.iter().map(|(id, _)| *id).zip(rows).collect();
        let conversations = self.conversations.iter_mut();
        let draws: Vec<(u64, &mut SequenceState, &[f32])> = conversations
            .filter_map(|(id, conversation)| Some((*id, conversation, *rows.get(id)?)))
            .collect();
        let draw = |(id, conversation, logits): (u64, &mut SequenceState, &[f32])| {
            let SequenceState { sampling, rng, turn, .. } = conversation;
            let turn = turn.as_mut().map(|turn| (turn.alternatives, turn.guide.as_mut()));
            let (alternatives, guide) = turn.unwrap_or_default();
            let drawn = match guide {
                None => Ok(sampling.draw(logits, rng)),
                Some(guide) => sampling.draw_guided(logits, guide.as_mut(), rng),
            };
            let with =
                |(token, logprob)| Drawn { token, logprob, alternatives: likeliest(logits, alternatives) };
            (id, drawn.map(with).map_err(|reason| EngineError::Guide { reason }))
        };
        // On a pool's thread, the pool's threads share the rows.
        match rayon::current_thread_index() {
            Some(_) if logits.len() >= WORTH_SHARING => draws.into_par_iter().map(draw).collect(),
            _ => draws.into_iter().map(draw).collect(),
        }
    }

    /// Adds a token to this conversation's turn. Ends the turn if the token ends it.
    fn add_token(&mut self, id: u64, drawn: Result<Drawn, EngineError>) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        let Some(segment) = self.segments.get_mut(conversation.segment) else { return };
        let Some(turn) = &mut conversation.turn else { return };
        let is_finite = |drawn: Drawn| match drawn.logprob.is_finite() {
            true => Ok(drawn),
            false => Err(EngineError::Logits),
        };
        let Drawn { token, logprob, alternatives } = match drawn.and_then(is_finite) {
            Ok(drawn) => drawn,
            Err(error) => {
                if let Some(turn) = conversation.turn.take() {
                    _ = turn.reply.send(Err(error));
                }
                return self.release(id);
            }
        };
        if turn.reply.is_closed() {
            self.cancel(id);
            return;
        }
        turn.sampled.tokens.push(token);
        if let Some(tokens) = &turn.tokens {
            // Nobody may listen any more.
            _ = tokens.send((token, logprob));
        }
        turn.sampled.logprobs.push(logprob);
        if turn.alternatives > 0 {
            turn.sampled.alternatives.push(alternatives);
        }
        segment.tokens.push(token);
        self.usage.sampled.fetch_add(1, Ordering::Relaxed);
        let stop = if turn.stop.contains(&token) {
            Stop::Token
        } else if turn.sampled.tokens.len() >= turn.max_new {
            Stop::Length
        } else if segment.end() >= self.decoder.config.context {
            Stop::Context
        } else {
            return;
        };
        turn.sampled.stop = stop;
        if let Some(turn) = conversation.turn.take() {
            _ = turn.reply.send(Ok(turn.sampled));
        }
        self.release(id);
    }
}
