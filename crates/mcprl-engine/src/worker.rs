//! The thread that decodes all turns of a device's conversations.
//!
//! All conversations are in one tree of tokens, whose segments have keys and values. A step takes the
//! turns with reserved cache memory and runs their waiting tokens through the decoder as one ragged batch. It
//! then samples where a turn needs a token. Conversations that wait for their tools are not in the batch.
//!
//! Conversations at one place of the tree share the row of a step, and each draws from it with its own generator. Who
//! comes to a place later draws from the odds that are kept there.

mod mixer;
mod place;
mod schedule;
#[cfg(test)]
mod tests;

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
    sampling::{Odds, likeliest},
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
/// Samplings whose odds are kept at one place.
const MOST_ODDS: usize = 4;
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
    tokens: Vec<u32>,
    /// The number of tokens that have their place in the tree.
    placed: usize,
    /// The segments of these tokens, root first. The last one may go on with the tokens of others.
    path: Arc<[usize]>,
    /// Where the pieces of its prompt end.
    pieces: Vec<usize>,
    sampling: Sampling,
    rng: ChaCha8Rng,
    turn: Option<Turn>,
    /// Its number of tokens and its random generator before the last turn.
    before: (usize, ChaCha8Rng),
    /// [`DecodeWorker::work`] at the end of its last turn.
    inactive_since: u64,
    /// The last step that computed a token of it.
    last_step: u64,
}

impl SequenceState {
    /// Its last segment.
    fn leaf(&self) -> Option<usize> {
        self.path.last().copied()
    }
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
    /// Whether a token and its log-probability are all it needs.
    fn is_plain(&self) -> bool {
        self.alternatives == 0 && self.guide.is_none()
    }

    /// Tokens it may still sample.
    fn remaining(&self) -> usize {
        self.max_new.saturating_sub(self.sampled.tokens.len())
    }
}

pub struct DecodeWorker {
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

/// A row of logits and the conversations that draw from it.
type Drawing<'a> = (&'a [f32], Vec<(u64, &'a mut SequenceState)>);

/// What each conversation of a row drew, and the odds there.
type DrawnRow = (Vec<(u64, Result<Drawn, EngineError>)>, Vec<Odds>);

/// A drawn token.
struct Drawn {
    token: u32,
    logprob: f32,
    alternatives: Vec<(u32, f32)>,
}

/// A segment's part in a step.
struct StepPart {
    /// The segment and its ancestors, root first, possibly with descendants.
    path: Arc<[usize]>,
    /// Index of the segment in the path.
    depth: usize,
    rows: Range<usize>,
}

impl StepPart {
    fn segment(&self) -> usize {
        self.path[self.depth]
    }

    fn path(&self) -> &[usize] {
        &self.path[..=self.depth]
    }
}

impl DecodeWorker {
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
                let tokens = prompt.concat();
                let ends = prompt.iter().scan(0, |end, piece| {
                    *end += piece.len();
                    Some(*end)
                });
                let rng = ChaCha8Rng::seed_from_u64(seed);
                let conversation = SequenceState {
                    placed: 0,
                    path: Arc::default(),
                    pieces: ends.collect(),
                    sampling,
                    before: (tokens.len(), rng.clone()),
                    rng,
                    turn: None,
                    inactive_since: self.work,
                    last_step: 0,
                    tokens,
                };
                self.conversations.insert(id, conversation);
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
                while self.conversations.get(&id).is_some_and(|conversation| !conversation.path.is_empty()) {
                    self.leave(id);
                }
                self.conversations.remove(&id);
                self.segments.drop_idle();
            }
        }
    }

    /// Queues a turn's tokens.
    fn queue(&mut self, id: u64, append: Vec<u32>) -> Result<&mut SequenceState, EngineError> {
        let closed = || EngineError::Worker { reason: "the conversation is closed".into() };
        let conversation = self.conversations.get_mut(&id).ok_or_else(closed)?;
        conversation.before = (conversation.tokens.len(), conversation.rng.clone());
        let (vocabulary, context) = (self.decoder.config.vocabulary, self.decoder.config.context);
        let mut tokens = conversation.tokens.iter().chain(&append);
        if let Some(token) = tokens.find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Token { token: *token, vocabulary }.into());
        }
        let tokens = conversation.tokens.len() + append.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens >= context {
            return Err(EngineError::Context { tokens, context });
        }
        conversation.tokens.extend(append);
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
            let is_free = |leaf: &usize| self.segments.get(*leaf).is_some_and(|leaf| !leaf.is_pinned());
            if let Some(leaf) = conversation.leaf().filter(is_free) {
                self.segments.shrink(leaf);
            }
        }
    }

    /// Undoes a conversation's last turn, ended or not. Returns the turn if it had not ended.
    fn cancel(&mut self, id: u64) -> Option<Turn> {
        self.release(id);
        let conversation = self.conversations.get_mut(&id)?;
        let (tokens, rng) = conversation.before.clone();
        conversation.rng = rng;
        let turn = conversation.turn.take();
        self.truncate(id, tokens);
        turn
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

    /// The tokens of each segment of a conversation's path that are to be computed before it can go on.
    fn waiting_tokens<'a>(&'a self, conversation: &'a SequenceState) -> impl Iterator<Item = usize> {
        conversation.path.iter().enumerate().map(|(depth, number)| {
            self.segments.get(*number).map_or(0, |segment| match depth + 1 == conversation.path.len() {
                true => (conversation.placed - segment.first).saturating_sub(segment.computed()),
                false => segment.waiting(),
            })
        })
    }

    /// The segments of the next step in depth-first order, with the number of rows of each.
    ///
    /// Decoding turns precede prompts and tool results, which get the rest of the step. A long prompt
    /// therefore delays others by at most one step. If less than [`PROMPT_ROWS`] would remain, turns
    /// alternate. Turns at one place have one row.
    fn parts(&mut self) -> Vec<StepPart> {
        // By the last segment: when a turn there was in a step last, and the turns.
        let mut decoding: BTreeMap<usize, (u64, Vec<u64>)> = BTreeMap::new();
        let mut prompts = Vec::new();
        for id in &self.running {
            let Some(conversation) = self.conversations.get(id) else { continue };
            let own = self.waiting_tokens(conversation).last();
            match (conversation.leaf(), self.waiting_tokens(conversation).sum()) {
                (_, 0) => (),
                (Some(leaf), 1) if own == Some(1) => {
                    let (last_step, turns) = decoding.entry(leaf).or_insert((u64::MAX, Vec::new()));
                    *last_step = conversation.last_step.min(*last_step);
                    turns.push(*id);
                }
                _ => prompts.push(*id),
            }
        }
        let most = STEP_ROWS - if prompts.is_empty() { 0 } else { PROMPT_ROWS };
        let mut decoding: Vec<(u64, Vec<u64>)> = decoding.into_values().collect();
        if decoding.len() > most {
            decoding.sort_unstable();
            decoding.truncate(most);
        }
        self.steps += 1;
        let mut parts = Vec::with_capacity(decoding.len() + 2 * prompts.len());
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for id in decoding.into_iter().flat_map(|(_, turns)| turns) {
            let Some(conversation) = self.conversations.get_mut(&id) else { continue };
            conversation.last_step = self.steps;
            let path = conversation.path.clone();
            let Some(leaf) = conversation.leaf() else { continue };
            taken.entry(leaf).or_insert_with(|| {
                parts.push(StepPart { depth: path.len() - 1, path, rows: 0..1 });
                parts.len() - 1
            });
        }
        let mut free = STEP_ROWS - parts.len();
        for id in prompts {
            let Some(conversation) = self.conversations.get(&id) else { continue };
            let waiting = self.waiting_tokens(conversation).collect::<Vec<_>>();
            for (depth, waiting) in waiting.into_iter().enumerate().filter(|(_, waiting)| *waiting > 0) {
                let index = *taken.entry(conversation.path[depth]).or_insert_with(|| {
                    parts.push(StepPart { path: conversation.path.clone(), depth, rows: 0..0 });
                    parts.len() - 1
                });
                let rows = &mut parts[index].rows;
                let more = waiting.saturating_sub(rows.end).min(free);
                rows.end += more;
                free -= more;
                if rows.end < waiting {
                    break;
                }
            }
        }
        parts.retain(|part| !part.rows.is_empty());
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

    /// The rows after which turns draw a token, and these turns.
    fn drawing(&self, parts: &[StepPart]) -> BTreeMap<usize, Vec<u64>> {
        let parts: BTreeMap<usize, &StepPart> = parts.iter().map(|part| (part.segment(), part)).collect();
        let mut drawing: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for id in &self.running {
            let of = |conversation: &SequenceState| {
                let part = parts.get(&conversation.leaf()?)?;
                let segment = self.segments.get(part.segment())?;
                // Its last token is this many before the last one of the part.
                let later = (segment.first + segment.computed()).checked_sub(conversation.placed)?;
                (later < part.rows.len()).then(|| part.rows.end - 1 - later)
            };
            if let Some(row) = self.conversations.get(id).and_then(of) {
                drawing.entry(row).or_default().push(*id);
            }
        }
        drawing
    }

    /// Draws the next token of every turn whose tokens are all computed.
    fn sample(&mut self, parts: &[StepPart], x: &Tensor) -> Result<(), EngineError> {
        let drawing: Vec<(usize, Vec<u64>)> = self.drawing(parts).into_iter().collect();
        for block in drawing.chunks(logit_rows(&self.decoder.config, self.decoder.by_kernels())) {
            let rows: Vec<usize> = block.iter().map(|(row, _)| *row).collect();
            let x = ops::move_to(&ops::gather(x, &rows)?, self.decoder.device())?;
            let (_, logits) = self.decoder.logits(&x)?;
            #[cfg(feature = "cuda")]
            if let Some(drawn) = self.draw_on_device(block, &logits)? {
                drawn.into_iter().for_each(|(id, drawn)| self.add_token(id, drawn));
                continue;
            }
            let logits = logits.to_device(&Device::Cpu)?;
            let logits = ops::values(&logits)?;
            for (drawn, odds) in self.draw(block, &logits) {
                if let Some((id, _)) = drawn.first() {
                    self.keep_odds(*id, odds);
                }
                for (id, drawn) in drawn {
                    self.add_token(id, drawn);
                }
            }
        }
        Ok(())
    }

    /// Draws where the logits are, if a kernel can: from all tokens, without alternatives and guide.
    #[cfg(feature = "cuda")]
    fn draw_on_device(
        &mut self,
        block: &[(usize, Vec<u64>)],
        logits: &Tensor,
    ) -> Result<Option<Vec<(u64, Result<Drawn, EngineError>)>>, EngineError> {
        let is_simple = |id: &u64| {
            self.conversations.get(id).is_some_and(|conversation| {
                conversation.turn.as_ref().is_none_or(Turn::is_plain) && conversation.sampling.is_unfiltered()
            })
        };
        if !ops::cuda::takes(logits) || !block.iter().flat_map(|(_, ids)| ids).all(is_simple) {
            return Ok(None);
        }
        let (mut ids, mut rows, mut draws, mut temperatures) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (row, id) in
            block.iter().enumerate().flat_map(|(row, (_, ids))| ids.iter().map(move |id| (row, *id)))
        {
            let Some(conversation) = self.conversations.get_mut(&id) else { continue };
            let temperature = conversation.sampling.temperature;
            ids.push(id);
            rows.push(row);
            temperatures.push(temperature);
            draws.push(if temperature > 0.0 { mcprl_base::random::unit(&mut conversation.rng) } else { 0.0 });
        }
        let shared = (rows.len() > block.len()).then(|| ops::gather(logits, &rows)).transpose()?;
        let (tokens, logprobs) = ops::cuda::draw(shared.as_ref().unwrap_or(logits), draws, temperatures)?;
        let drawn = |(token, logprob)| Ok(Drawn { token, logprob, alternatives: Vec::new() });
        Ok(Some(ids.into_iter().zip(tokens.into_iter().zip(logprobs).map(drawn)).collect()))
    }

    /// Draws a token for each of these conversations, those of a row from the same logits. Also returns each row's odds.
    fn draw(&mut self, block: &[(usize, Vec<u64>)], logits: &[f32]) -> Vec<DrawnRow> {
        let rows = logits.chunks_exact(self.decoder.config.vocabulary);
        let mut of_row: Vec<Drawing<'_>> = rows.map(|logits| (logits, Vec::new())).collect();
        let index: BTreeMap<u64, usize> = block
            .iter()
            .enumerate()
            .flat_map(|(row, (_, ids))| ids.iter().map(move |id| (*id, row)))
            .collect();
        for (id, conversation) in &mut self.conversations {
            if let Some(row) = index.get(id) {
                of_row[*row].1.push((*id, conversation));
            }
        }
        // On a pool's thread, the pool's threads share the rows.
        match rayon::current_thread_index() {
            Some(_) if logits.len() >= WORTH_SHARING => of_row.into_par_iter().map(draw_from_row).collect(),
            _ => of_row.into_iter().map(draw_from_row).collect(),
        }
    }

    /// Keeps a row's odds at the place of this conversation.
    fn keep_odds(&mut self, id: u64, odds: Vec<Odds>) {
        let Some(conversation) = self.conversations.get(&id) else { return };
        let leaf = conversation.leaf();
        if let Some(segment) = leaf.and_then(|leaf| self.segments.get_mut(leaf)) {
            let here = segment.odds.entry(conversation.placed - segment.first).or_default();
            here.extend(odds);
            here.truncate(MOST_ODDS);
        }
    }

    /// Draws from the odds at a conversation's place, if they are there and enough.
    fn draw_from_odds(&mut self, id: u64) -> Option<Drawn> {
        let conversation = self.conversations.get_mut(&id)?;
        let segment = self.segments.get(conversation.leaf()?)?;
        conversation.turn.as_ref().filter(|turn| turn.is_plain())?;
        let mut odds = segment.odds.get(&(conversation.placed - segment.first))?.iter();
        let SequenceState { sampling, rng, .. } = conversation;
        let (token, logprob) = odds.find_map(|odds| odds.draw(*sampling, rng))?;
        Some(Drawn { token, logprob, alternatives: Vec::new() })
    }

    /// Adds a token to this conversation's turn. Ends the turn if the token ends it.
    fn add_token(&mut self, id: u64, drawn: Result<Drawn, EngineError>) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
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
        conversation.tokens.push(token);
        self.usage.sampled.fetch_add(1, Ordering::Relaxed);
        let stop = if turn.stop.contains(&token) {
            Stop::Token
        } else if turn.sampled.tokens.len() >= turn.max_new {
            Stop::Length
        } else if conversation.tokens.len() >= self.decoder.config.context {
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

/// Draws a token for each conversation of a row.
fn draw_from_row((logits, conversations): Drawing<'_>) -> DrawnRow {
    let (mut drawn, mut all_odds) = (Vec::with_capacity(conversations.len()), Vec::new());
    let mut plain: Vec<(Sampling, Vec<(u64, &mut SequenceState)>)> = Vec::new();
    for (id, conversation) in conversations {
        let sampling = conversation.sampling;
        match conversation.turn.as_mut().filter(|turn| !turn.is_plain()) {
            None => match plain.iter_mut().find(|(of, _)| *of == sampling) {
                Some((_, same)) => same.push((id, conversation)),
                None => plain.push((sampling, vec![(id, conversation)])),
            },
            Some(turn) => {
                let token = match &mut turn.guide {
                    None => Ok(sampling.draw(logits, &mut conversation.rng)),
                    Some(guide) => sampling.draw_guided(logits, guide.as_mut(), &mut conversation.rng),
                };
                let alternatives = likeliest(logits, turn.alternatives);
                let with = |(token, logprob)| Drawn { token, logprob, alternatives };
                drawn.push((id, token.map(with).map_err(|reason| EngineError::Guide { reason })));
            }
        }
    }
    for (sampling, conversations) in plain {
        all_odds.push(sampling.with(logits, |distribution| {
            for (id, conversation) in conversations {
                let (token, logprob) = distribution.draw(&mut conversation.rng);
                drawn.push((id, Ok(Drawn { token, logprob, alternatives: Vec::new() })));
            }
            distribution.odds()
        }));
    }
    (drawn, all_odds)
}
