//! One thread that decodes every turn that is ready.
//!
//! Prompt pieces and conversations are segments of one tree, each with its keys and values. A step takes the
//! turns with reserved cache memory and runs their waiting tokens through the decoder as one ragged batch. It
//! then samples where a turn needs a token. Conversations that wait for their tools are not in the batch.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvError},
    },
};

use candle_core::{Device, Tensor};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rayon::prelude::*;
use tokio::sync::oneshot;

use super::{
    EngineError, Sampled, Sampling, Stop, Usage,
    segments::{Segment, Segments},
    trainer::logit_rows,
};
use crate::model::{
    Decoder, ModelError,
    ops::{self, AttentionMask, CachedSegment},
};

/// Rows of one step. Longer prompts take several steps.
pub const STEP_ROWS: usize = 512;
/// The minimum share of these rows for waiting prompts, and for decoding turns if there are that many.
const PROMPT_ROWS: usize = STEP_ROWS / 4;
/// A step of one row takes about as long as one of this many rows: the time to read the weights.
const FEW_ROWS: usize = 64;
/// Number of logits from which threads share the drawing of tokens.
const WORTH_SHARING: usize = 1 << 18;

pub enum Command {
    Open {
        id: u64,
        prompt: Vec<Arc<[u32]>>,
        sampling: Sampling,
        seed: u64,
    },
    /// With `given_up`, the caller did not read the result of the previous turn.
    Turn {
        id: u64,
        append: Vec<u32>,
        stop: Vec<u32>,
        max_new: usize,
        given_up: bool,
        reply: Reply,
    },
    Close {
        id: u64,
    },
}

type Reply = oneshot::Sender<Result<Sampled, EngineError>>;

pub(super) struct Conversation {
    pub segment: usize,
    /// Its segment and the ancestors of that segment, root first.
    pub path: Arc<[usize]>,
    sampling: Sampling,
    rng: ChaCha8Rng,
    pub turn: Option<Turn>,
    /// Its number of tokens and its random generator before the last turn.
    before: (usize, ChaCha8Rng),
    /// [`Worker::work`] at the end of its last turn.
    pub away_since: u64,
    /// The last step that computed a token of it.
    stepped: u64,
}

pub(super) struct Turn {
    stop: Vec<u32>,
    max_new: usize,
    sampled: Sampled,
    pub reply: Reply,
}

impl Turn {
    /// Tokens it may still sample.
    pub fn left(&self) -> usize {
        self.max_new.saturating_sub(self.sampled.tokens.len())
    }
}

pub struct Worker {
    decoder: Arc<Decoder>,
    usage: Arc<Usage>,
    pub(super) segments: Segments,
    /// By number: older conversations have smaller numbers.
    pub(super) conversations: BTreeMap<u64, Conversation>,
    /// Conversations with a turn that has no reserved memory.
    pub(super) asking: BTreeSet<u64>,
    /// Conversations with a turn that has reserved memory.
    pub(super) running: BTreeSet<u64>,
    /// Work done so far, in tokens. A step of fewer than [`FEW_ROWS`] counts as that many.
    pub(super) work: u64,
    steps: u64,
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
            asking: BTreeSet::new(),
            running: BTreeSet::new(),
            work: 0,
            steps: 0,
        }
    }

    /// Runs until every handle is dropped.
    pub fn run(mut self, commands: Receiver<Command>) {
        let mut noted = 0;
        loop {
            if self.running.is_empty() && self.asking.is_empty() {
                match commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(RecvError) => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
            self.give_places();
            let reserved = self.segments.reserved() as u64;
            self.usage.note_cache(noted, reserved);
            noted = reserved;
            if let Err(error) = self.step() {
                self.fail(&error);
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { id, prompt, sampling, seed } => {
                let mut pieces: Vec<&[u32]> =
                    prompt.iter().map(AsRef::as_ref).filter(|p| !p.is_empty()).collect();
                // The last token belongs to the conversation alone: its successor is sampled for it alone.
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
                let (turn, away_since, stepped) = (None, self.work, 0);
                let conversation =
                    Conversation { segment, path, sampling, rng, turn, before, away_since, stepped };
                self.conversations.insert(id, conversation);
                self.segments.forget_idle();
            }
            Command::Turn { id, append, stop, max_new, given_up, reply } => {
                if given_up {
                    self.cancel(id);
                }
                match self.queue(id, append) {
                    Ok(conversation) => {
                        let sampled =
                            Sampled { tokens: Vec::new(), logprobs: Vec::new(), stop: Stop::Length };
                        conversation.turn = Some(Turn { stop, max_new, sampled, reply });
                        self.asking.insert(id);
                    }
                    // The receiver is gone if the episode was cancelled.
                    Err(error) => _ = reply.send(Err(error)),
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
    fn queue(&mut self, id: u64, append: Vec<u32>) -> Result<&mut Conversation, EngineError> {
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
    fn leave(&mut self, id: u64) {
        let (asked, ran) = (self.asking.remove(&id), self.running.remove(&id));
        let Some(conversation) = self.conversations.get_mut(&id).filter(|_| asked || ran) else { return };
        conversation.away_since = self.work;
        if ran {
            self.segments.unpin(&conversation.path);
            self.segments.shrink(conversation.segment);
        }
    }

    /// Undoes a conversation's last turn, ended or not. Returns the turn if it had not ended.
    pub(super) fn cancel(&mut self, id: u64) -> Option<Turn> {
        self.leave(id);
        let conversation = self.conversations.get_mut(&id)?;
        let segment = self.segments.get_mut(conversation.segment)?;
        let (tokens, rng) = &conversation.before;
        conversation.rng = rng.clone();
        segment.tokens.truncate(*tokens);
        segment.reached = segment.reached.min(*tokens);
        // Keys and values are never truncated, and the next turn needs a token to continue from.
        if segment.computed() >= segment.tokens.len() {
            self.segments.give_up(conversation.segment);
        }
        conversation.turn.take()
    }

    /// Reports the failure to every conversation that waits.
    fn fail(&mut self, error: &EngineError) {
        let ids: Vec<u64> = self.running.iter().chain(&self.asking).copied().collect();
        for turn in ids.into_iter().filter_map(|id| self.cancel(id)).collect::<Vec<_>>() {
            _ = turn.reply.send(Err(EngineError::Worker { reason: error.to_string() }));
        }
        // Some layers may have computed more than others.
        self.segments.give_up_all();
    }

    /// The segments of the next step in depth-first order, with the number of rows of each.
    ///
    /// Decoding turns precede prompts and tool results, which get the rest of the step. A long prompt
    /// therefore delays others by at most one step. If less than [`PROMPT_ROWS`] would remain, turns
    /// alternate.
    fn parts(&mut self) -> Vec<Part> {
        let (mut going_on, mut prompts) = (Vec::new(), Vec::new());
        for id in &self.running {
            let Some(conversation) = self.conversations.get(id) else { continue };
            let mut waiting =
                conversation.path.iter().map(|number| self.segments.get(*number).map_or(0, Segment::waiting));
            let own = waiting.next_back();
            match own == Some(1) && waiting.all(|tokens| tokens == 0) {
                true => going_on.push((conversation.stepped, *id)),
                false => prompts.push(*id),
            }
        }
        let most = STEP_ROWS - if prompts.is_empty() { 0 } else { PROMPT_ROWS };
        if going_on.len() > most {
            going_on.sort_unstable();
            going_on.truncate(most);
        }
        self.steps += 1;
        let mut parts = Vec::with_capacity(going_on.len() + 2 * prompts.len());
        for (_, id) in &going_on {
            let Some(conversation) = self.conversations.get_mut(id) else { continue };
            conversation.stepped = self.steps;
            let path = conversation.path.clone();
            parts.push(Part { depth: path.len() - 1, path, conversation: Some(*id), rows: 0..1 });
        }
        let mut left = STEP_ROWS - parts.len();
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for id in prompts {
            let Some(conversation) = self.conversations.get(&id) else { continue };
            for (depth, number) in conversation.path.iter().enumerate() {
                let waiting = self.segments.get(*number).map_or(0, Segment::waiting);
                let rows = match taken.get(number) {
                    Some(rows) => *rows,
                    None => {
                        let rows = waiting.min(left);
                        if rows > 0 {
                            let path = conversation.path.clone();
                            let conversation = (depth + 1 == path.len()).then_some(id);
                            parts.push(Part { path, depth, conversation, rows: 0..rows });
                            taken.insert(*number, rows);
                            left -= rows;
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
        let mut again = 0;
        for part in &parts {
            let Some(segment) = self.segments.get_mut(part.segment()) else { continue };
            let (start, end) = (segment.computed(), segment.computed() + part.rows.len());
            again += segment.reached.min(end) - segment.reached.min(start);
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
        let heads = decoder.config.heads;
        let mask = AttentionMask::new(decoder.half());
        let mut x = decoder.embed(&tokens, &positions)?;
        for layer in 0..decoder.config.layers {
            let segments = &mut self.segments;
            let saved = decoder.layer(layer, x, &positions, |q, k, v| {
                for part in &parts {
                    if let Some(segment) = segments.get_mut(part.segment()) {
                        let expected = segment.tokens.len();
                        segment.cache[layer].extend(k, v, part.rows.clone(), expected)?;
                    }
                }
                let past = |(number, rows): &(usize, Range<usize>)| {
                    let segment = segments.get(*number)?;
                    Some(CachedSegment {
                        rows: rows.clone(),
                        first: segment.first,
                        cache: &segment.cache[layer],
                    })
                };
                let past: Vec<CachedSegment<'_>> = covered.iter().flatten().filter_map(past).collect();
                ops::attend(q, &positions, &past, heads, &mask)
            })?;
            x = saved.output;
        }
        self.work += tokens.len().max(FEW_ROWS) as u64;
        self.usage.count(tokens.len() - again, again);
        #[cfg(test)]
        assert!(self.segments.held() <= self.segments.reserved(), "more is held than was set aside");
        self.sample(&parts, &x)
    }

    /// Draws the next token of every turn whose tokens are all computed.
    fn sample(&mut self, parts: &[Part], x: &Tensor) -> Result<(), EngineError> {
        let complete =
            |part: &&Part| self.segments.get(part.segment()).is_some_and(|segment| segment.waiting() == 0);
        let asks = |part: &Part| Some((part.conversation?, part.rows.end - 1));
        let asking: Vec<(u64, usize)> = parts.iter().filter(complete).filter_map(asks).collect();
        for block in asking.chunks(logit_rows(&self.decoder.config)) {
            let rows: Vec<usize> = block.iter().map(|(_, row)| *row).collect();
            let (_, logits) = self.decoder.logits(&ops::gather(x, &rows)?)?;
            let logits = logits.to_device(&Device::Cpu)?;
            let logits = ops::values(&logits)?;
            for ((id, _), (token, logprob)) in block.iter().zip(self.draw(block, &logits)) {
                self.take(*id, token, logprob);
            }
        }
        Ok(())
    }

    /// Draws a token for each of these conversations, each from one row of logits.
    fn draw(&mut self, block: &[(u64, usize)], logits: &[f32]) -> Vec<(u32, f32)> {
        let vocabulary = self.decoder.config.vocabulary;
        let draws = block.iter().zip(logits.chunks_exact(vocabulary)).filter_map(|((id, _), logits)| {
            let conversation = self.conversations.get(id)?;
            Some((conversation.sampling, conversation.rng.clone(), logits))
        });
        let mut draws: Vec<_> = draws.collect();
        let draw = |(sampling, rng, logits): &mut (Sampling, ChaCha8Rng, &[f32])| sampling.draw(logits, rng);
        // On a pool's thread, the pool's threads share the rows.
        let drawn = match rayon::current_thread_index() {
            Some(_) if logits.len() >= WORTH_SHARING => draws.par_iter_mut().map(draw).collect(),
            _ => draws.iter_mut().map(draw).collect(),
        };
        for ((id, _), (_, rng, _)) in block.iter().zip(draws) {
            if let Some(conversation) = self.conversations.get_mut(id) {
                conversation.rng = rng;
            }
        }
        drawn
    }

    /// Adds a token to this conversation's turn. Ends the turn if the token ends it.
    fn take(&mut self, id: u64, token: u32, logprob: f32) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        let Some(segment) = self.segments.get_mut(conversation.segment) else { return };
        let Some(turn) = &mut conversation.turn else { return };
        if !logprob.is_finite() {
            if let Some(turn) = conversation.turn.take() {
                _ = turn.reply.send(Err(EngineError::Logits));
            }
            return self.leave(id);
        }
        turn.sampled.tokens.push(token);
        turn.sampled.logprobs.push(logprob);
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
        self.leave(id);
    }
}
