//! One thread that decodes whatever is ready.
//!
//! Prompt pieces and conversations are nodes of one tree, each with its keys and values. A step takes every node that
//! has tokens waiting and whose ancestors are complete, runs them through the decoder as one ragged batch, and samples
//! where a conversation asks for a token. Conversations that wait on their tools are simply not in the batch.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvError},
    },
};

use candle_core::{Device, Tensor};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use tokio::sync::oneshot;

use super::{EngineError, Sampled, Sampling, Stop, Usage};
use crate::model::{
    Decoder, ModelError,
    ops::{self, Cache, Past, Sights},
};

/// Rows of one step; longer prompts are computed over several.
const STEP_ROWS: usize = 512;
/// Prompt pieces kept although no conversation uses them.
const IDLE_PIECES: usize = 256;

pub enum Command {
    Open { id: u64, prompt: Vec<Arc<[u32]>>, sampling: Sampling, seed: u64 },
    Turn { id: u64, append: Vec<u32>, stop: Vec<u32>, max_new: usize, reply: Reply },
    Close { id: u64 },
}

type Reply = oneshot::Sender<Result<Sampled, EngineError>>;

/// A run of tokens with its keys and values.
struct Node {
    parent: Option<usize>,
    /// Position of its first token.
    first: usize,
    /// Per layer.
    cache: Vec<Cache>,
    /// Tokens not yet computed.
    waiting: Vec<u32>,
    /// Conversations and pieces that hang from it.
    users: usize,
}

impl Node {
    /// Position of the next token to compute.
    fn next(&self) -> usize {
        self.first + self.cache.first().map_or(0, Cache::len)
    }
}

struct Conversation {
    node: usize,
    /// Tokens of the conversation that the next turn computes first: the prompt's last, or the last one sampled.
    carry: Vec<u32>,
    sampling: Sampling,
    rng: ChaCha8Rng,
    turn: Option<Turn>,
}

struct Turn {
    stop: Vec<u32>,
    max_new: usize,
    sampled: Sampled,
    reply: Reply,
}

pub struct Worker {
    decoder: Arc<Decoder>,
    usage: Arc<Usage>,
    nodes: BTreeMap<usize, Node>,
    next_node: usize,
    /// Prompt pieces by parent and tokens.
    pieces: BTreeMap<(Option<usize>, Vec<u32>), usize>,
    conversations: BTreeMap<u64, Conversation>,
}

/// A node's part in a step.
struct Part {
    node: usize,
    /// The node and its ancestors, root first.
    path: Vec<usize>,
    rows: Range<usize>,
}

impl Worker {
    pub fn new(decoder: Arc<Decoder>, usage: Arc<Usage>) -> Self {
        Self {
            decoder,
            usage,
            nodes: BTreeMap::new(),
            next_node: 0,
            pieces: BTreeMap::new(),
            conversations: BTreeMap::new(),
        }
    }

    /// Works until every handle is gone.
    pub fn run(mut self, commands: Receiver<Command>) {
        loop {
            if self.nodes.values().all(|node| node.waiting.is_empty()) {
                match commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(RecvError) => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
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
                let mut carry = Vec::new();
                if !self.fits(&pieces) {
                    // The first turn refuses it, and only it.
                    carry = std::mem::take(&mut pieces).concat();
                } else if let Some((last, rest)) = pieces.pop().and_then(<[u32]>::split_last) {
                    carry.push(*last);
                    pieces.extend((!rest.is_empty()).then_some(rest));
                }
                let parent = pieces.into_iter().fold(None, |parent, piece| Some(self.piece(parent, piece)));
                let node = self.add(parent, Vec::new());
                let rng = ChaCha8Rng::seed_from_u64(seed);
                self.conversations.insert(id, Conversation { node, carry, sampling, rng, turn: None });
                self.forget_idle();
            }
            Command::Turn { id, append, stop, max_new, reply } => {
                let sampled = Sampled { tokens: Vec::new(), logprobs: Vec::new(), stop: Stop::Length };
                match self.queue(id, append) {
                    Ok(conversation) => conversation.turn = Some(Turn { stop, max_new, sampled, reply }),
                    // Nobody listens where the episode was given up.
                    Err(error) => _ = reply.send(Err(error)),
                }
            }
            Command::Close { id } => {
                if let Some(conversation) = self.conversations.remove(&id) {
                    self.remove(conversation.node);
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
        let node = self.nodes.get_mut(&conversation.node).ok_or_else(closed)?;
        let (vocabulary, context) = (self.decoder.config.vocabulary, self.decoder.config.context);
        let tokens = || conversation.carry.iter().chain(&append);
        if let Some(token) = tokens().find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Token { token: *token, vocabulary }.into());
        }
        let count = node.next() + tokens().count();
        if tokens().next().is_none() {
            return Err(EngineError::EmptyPrompt);
        }
        if count >= context {
            return Err(EngineError::Context { tokens: count, context });
        }
        node.waiting.append(&mut conversation.carry);
        node.waiting.extend(append);
        Ok(conversation)
    }

    /// The node of a prompt piece, made if it is new.
    fn piece(&mut self, parent: Option<usize>, tokens: &[u32]) -> usize {
        let key = (parent, tokens.to_vec());
        if let Some(node) = self.pieces.get(&key) {
            return *node;
        }
        let node = self.add(parent, key.1.clone());
        self.pieces.insert(key, node);
        node
    }

    fn add(&mut self, parent: Option<usize>, waiting: Vec<u32>) -> usize {
        let config = &self.decoder.config;
        let first = parent.and_then(|parent| self.nodes.get_mut(&parent)).map_or(0, |parent| {
            parent.users += 1;
            parent.next() + parent.waiting.len()
        });
        let by_kernels = self.decoder.by_kernels();
        let cache = (0..config.layers).map(|_| Cache::new(config.heads, by_kernels)).collect();
        let node = self.next_node;
        self.next_node += 1;
        self.nodes.insert(node, Node { parent, first, cache, waiting, users: 0 });
        node
    }

    fn remove(&mut self, node: usize) {
        let parent = self.nodes.remove(&node).and_then(|node| node.parent);
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.users -= 1;
        }
    }

    /// Frees prompt pieces nobody uses, oldest first, once there are many.
    fn forget_idle(&mut self) {
        while self.pieces.len() > IDLE_PIECES {
            let idle = |(_, node): &(_, &usize)| self.nodes.get(node).is_some_and(|node| node.users == 0);
            let Some((key, node)) = self.pieces.iter().filter(idle).min_by_key(|(_, node)| **node) else {
                return;
            };
            let (key, node) = (key.clone(), *node);
            self.pieces.remove(&key);
            self.remove(node);
        }
    }

    /// Tells every conversation that waits that its turn failed.
    fn fail(&mut self, error: &EngineError) {
        for node in self.nodes.values_mut() {
            node.waiting.clear();
        }
        for turn in self.conversations.values_mut().filter_map(|conversation| conversation.turn.take()) {
            _ = turn.reply.send(Err(EngineError::Worker { reason: error.to_string() }));
        }
    }

    /// The nodes of the next step in depth-first order, with the rows each gets.
    fn parts(&self) -> Vec<Part> {
        let mut ready = Vec::new();
        let mut rows = 0;
        let mut whole: BTreeMap<usize, bool> = BTreeMap::new();
        // Parents are older than their children, so ascending ids meet them first.
        for (id, node) in &self.nodes {
            let reachable = node.parent.is_none_or(|parent| whole.get(&parent).copied().unwrap_or(true));
            let taken = if reachable { node.waiting.len().min(STEP_ROWS - rows) } else { 0 };
            whole.insert(*id, reachable && taken == node.waiting.len());
            if taken > 0 {
                rows += taken;
                let mut path = vec![*id];
                while let Some(parent) = self.nodes[path.last().expect("not empty")].parent {
                    path.push(parent);
                }
                path.reverse();
                ready.push(Part { node: *id, path, rows: 0..taken });
            }
        }
        ready.sort_by(|a, b| a.path.cmp(&b.path));
        let mut start = 0;
        for part in &mut ready {
            part.rows = start..start + part.rows.len();
            start = part.rows.end;
        }
        ready
    }

    /// Computes waiting tokens and samples where they complete a conversation's.
    fn step(&mut self) -> Result<(), EngineError> {
        let parts = self.parts();
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        // Every node on a path, with the rows beneath it; parents come before their children.
        let mut covered: BTreeMap<(usize, usize), Range<usize>> = BTreeMap::new();
        for part in &parts {
            let Some(node) = self.nodes.get_mut(&part.node) else { continue };
            let first = node.next() as u32;
            positions.extend((0..part.rows.len() as u32).map(|row| first + row));
            tokens.extend(node.waiting.drain(..part.rows.len()));
            for (depth, node) in part.path.iter().enumerate() {
                covered.entry((depth, *node)).or_insert(part.rows.clone()).end = part.rows.end;
            }
        }
        if tokens.is_empty() {
            return Ok(());
        }
        let decoder = self.decoder.clone();
        let heads = decoder.config.heads;
        let sights = Sights::new(decoder.half());
        let mut x = decoder.embed(&tokens, &positions)?;
        for layer in 0..decoder.config.layers {
            let nodes = &mut self.nodes;
            let saved = decoder.layer(layer, x, &positions, |q, k, v| {
                for part in &parts {
                    if let Some(node) = nodes.get_mut(&part.node) {
                        node.cache[layer].extend(k, v, part.rows.clone())?;
                    }
                }
                let past = |((_, node), rows): (&(usize, usize), &Range<usize>)| {
                    let node = nodes.get(node)?;
                    Some(Past { rows: rows.clone(), first: node.first, cache: &node.cache[layer] })
                };
                let past: Vec<Past<'_>> = covered.iter().filter_map(past).collect();
                ops::attend(q, &positions, &past, heads, &sights)
            })?;
            x = saved.output;
        }
        self.usage.computed.fetch_add(tokens.len() as u64, Ordering::Relaxed);
        self.sample(&parts, &x)
    }

    fn sample(&mut self, parts: &[Part], x: &Tensor) -> Result<(), EngineError> {
        let ends: BTreeMap<usize, usize> = parts
            .iter()
            .filter(|part| self.nodes.get(&part.node).is_some_and(|node| node.waiting.is_empty()))
            .map(|part| (part.node, part.rows.end - 1))
            .collect();
        let (mut asking, mut rows) = (Vec::new(), Vec::new());
        for (id, conversation) in &self.conversations {
            if let (Some(row), Some(_)) = (ends.get(&conversation.node), &conversation.turn) {
                asking.push(*id);
                rows.push(*row);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let (_, logits) = self.decoder.logits(&ops::gather(x, &rows)?)?;
        let logits = logits.to_device(&Device::Cpu)?;
        let logits = ops::values(&logits)?;
        let context = self.decoder.config.context;
        for (id, logits) in asking.iter().zip(logits.chunks_exact(self.decoder.config.vocabulary)) {
            let Some(conversation) = self.conversations.get_mut(id) else { continue };
            let Some(mut turn) = conversation.turn.take() else { continue };
            let Some(node) = self.nodes.get_mut(&conversation.node) else { continue };
            let (token, logprob) = conversation.sampling.draw(logits, &mut conversation.rng);
            turn.sampled.tokens.push(token);
            turn.sampled.logprobs.push(logprob);
            self.usage.sampled.fetch_add(1, Ordering::Relaxed);
            let stop = if turn.stop.contains(&token) {
                Some(Stop::Token)
            } else if turn.sampled.tokens.len() >= turn.max_new {
                Some(Stop::Length)
            } else if node.next() + 1 >= context {
                Some(Stop::Context)
            } else {
                None
            };
            match stop {
                Some(stop) => {
                    conversation.carry.push(token);
                    turn.sampled.stop = stop;
                    _ = turn.reply.send(Ok(turn.sampled));
                }
                None => {
                    node.waiting.push(token);
                    conversation.turn = Some(turn);
                }
            }
        }
        Ok(())
    }
}
