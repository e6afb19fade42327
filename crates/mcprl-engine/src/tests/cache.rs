//! Tests keys and values within a bound: the bound changes nothing that is sampled.

use std::{sync::atomic::Ordering, time::Duration};

use futures::FutureExt;
use mcprl_base::error::Diagnostic;
use proptest::prelude::*;

use super::*;

/// Bytes of 32 tokens of one segment.
const PANELS: usize = 2 * 2 * 2 * 16 * 32 * size_of::<f32>();

/// Bytes of a conversation with prompt pieces of 40 and 10 tokens and its own tokens up to the full context.
const ALONE: usize = 2 * PANELS + PANELS + 3 * PANELS;

#[derive(Debug, Clone)]
struct Talk {
    prefix: usize,
    task: usize,
    seed: u64,
    turns: Vec<Exchange>,
}

#[derive(Debug, Clone)]
struct Exchange {
    append: usize,
    new: usize,
    /// How often other tasks run first.
    pause: usize,
    /// The turn is first cancelled after this many polls.
    cancel_after: Option<usize>,
}

fn talks() -> impl Strategy<Value = Vec<Talk>> {
    let exchange = (0usize..12, 1usize..20, 0usize..6, prop::option::weighted(0.2, 0usize..4))
        .prop_map(|(append, new, pause, cancel_after)| Exchange { append, new, pause, cancel_after });
    let talk = (0usize..3, 0usize..4, any::<u64>(), prop::collection::vec(exchange, 1..4))
        .prop_map(|(prefix, task, seed, turns)| Talk { prefix, task, seed, turns });
    prop::collection::vec(talk, 1..14)
}

async fn play_all(sampler: &Sampler, talks: &[Talk]) -> Vec<Vec<(Vec<u32>, Vec<u32>)>> {
    let one = |talk: Talk| async move {
        let prompt = vec![tokens(40, talk.prefix).into(), tokens(5 + talk.task, talk.task).into()];
        let mut sequence = sampler.open(prompt, WARM, talk.seed);
        let mut replies = Vec::new();
        for (index, exchange) in talk.turns.iter().enumerate() {
            for _ in 0..exchange.pause {
                tokio::task::yield_now().await;
            }
            let append = tokens(exchange.append, index);
            if let Some(polls) = exchange.cancel_after {
                let turn = sequence.turn(&append, &[5], exchange.new);
                let mut turn = Box::pin(turn);
                let mut done = None;
                for _ in 0..polls {
                    done = done.or_else(|| (&mut turn).now_or_never());
                    tokio::time::sleep(Duration::from_micros(100)).await;
                }
                if let Some(done) = done {
                    let done = done.unwrap();
                    replies.push((done.tokens, done.logprobs.iter().map(|p| p.to_bits()).collect()));
                    continue;
                }
            }
            let turn = sequence.turn(&append, &[5], exchange.new).await.unwrap();
            replies.push((turn.tokens, turn.logprobs.iter().map(|p| p.to_bits()).collect()));
        }
        replies
    };
    join_all(talks.iter().cloned().map(one)).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_bound_on_keys_and_values_changes_no_token(talks in talks(), tenths in 10usize..30, threads in 1usize..3) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bound = threads * ALONE * tenths / 10;
        let bounded = Sampler::bounded(adapted(), threads, bound);
        let free = Sampler::bounded(adapted(), 1, usize::MAX);
        let (found, expected) = runtime.block_on(async {
            (play_all(&bounded, &talks).await, play_all(&free, &talks).await)
        });
        prop_assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn keys_and_values_take_half_in_bf16() {
    let most = async |decoder| {
        let sampler = Sampler::bounded(decoder, 1, usize::MAX);
        let mut sequence = sampler.open(vec![tokens(60, 1).into()], WARM, 1);
        sequence.turn(&[], &[], 1).await.unwrap();
        sampler.usage().max_cached.load(Ordering::Relaxed)
    };
    assert_eq!(most(frozen(Format::Nf4)).await, most(decoder()).await / 2);
}

fn counts(sampler: &Sampler) -> [u64; 2] {
    let usage = sampler.usage();
    [&usage.computed, &usage.recomputed].map(|count| count.load(Ordering::Relaxed))
}

fn long_context() -> Decoder {
    let mut config = config();
    config.context = 8192;
    Decoder::random(config, Init { seed: 3, deviation: 0.15 }).unwrap()
}

#[tokio::test]
async fn an_inactive_conversation_is_evicted_and_recomputed_when_it_continues() {
    let talk = async |bound| {
        let sampler = Sampler::bounded(decoder(), 1, bound);
        let mut open = [1, 2].map(|seed| sampler.open(vec![tokens(60, seed).into()], WARM, seed as u64));
        let mut replies = Vec::new();
        for _ in 0..2 {
            for sequence in &mut open {
                replies.push(sequence.turn(&[3, 4], &[], 20).await.unwrap());
            }
        }
        (replies, counts(&sampler))
    };
    let (found, [computed, again]) = talk(6 * PANELS).await;
    let (expected, [all, none]) = talk(usize::MAX).await;
    assert_eq!(found, expected);
    assert_eq!((computed, none), (all, 0), "recomputed tokens are counted separately");
    assert!(again > 0);
}

#[tokio::test]
async fn the_youngest_turn_waits_if_running_turns_exceed_the_bound() {
    let talk = async |bound| {
        let sampler = Sampler::bounded(long_context(), 1, bound);
        let mut open = [1, 2].map(|seed| sampler.open(vec![tokens(20, seed).into()], WARM, seed as u64));
        let replies = join_all(open.iter_mut().map(|sequence| sequence.turn(&[], &[], 200))).await;
        (replies.into_iter().map(Result::unwrap).collect::<Vec<_>>(), counts(&sampler))
    };
    let (expected, [all, _]) = talk(usize::MAX).await;
    // On a busy machine one turn may end before the other starts. Then there is nothing to wait for.
    let mut again = 0;
    for _ in 0..20 {
        let (found, [computed, more]) = talk(9 * PANELS).await;
        assert_eq!(found, expected);
        assert_eq!(computed, all);
        again = more;
        if again > 0 {
            break;
        }
    }
    assert!(again > 0);
}

/// Samples eight conversations with one prompt. Returns the most bytes of keys and values, and the load.
pub(super) async fn eight_conversations(decoder: Decoder) -> (usize, SamplingLoad) {
    let sampler = Sampler::bounded(decoder, 1, usize::MAX);
    let mut open: Vec<_> = (0..8).map(|seed| sampler.open(vec![tokens(60, 1).into()], WARM, seed)).collect();
    join_all(open.iter_mut().map(|sequence| sequence.turn(&[], &[], 30))).await;
    let load = SamplingLoad {
        sequences: 8,
        longest: 90,
        tokens: 60 + 8 * 30,
        bound: None,
        threads: 1,
        devices: 1,
        copies: 1,
        adapter: None,
    };
    (sampler.usage().max_cached.load(Ordering::Relaxed) as usize, load)
}

#[tokio::test]
async fn the_estimate_of_keys_and_values_is_an_upper_bound() {
    let (most, load) = eight_conversations(decoder()).await;
    let estimate = Footprint::sampling(&config(), Format::F32, &load);
    assert!(most <= estimate.cache);
    let bounded = SamplingLoad { bound: Some(PANELS), ..load };
    assert_eq!(Footprint::sampling(&config(), Format::F32, &bounded).cache, PANELS);
}

#[tokio::test]
async fn a_conversation_that_does_not_fit_alone_is_refused_and_others_continue() {
    let sampler = Sampler::bounded(decoder(), 1, 2 * PANELS);
    let mut long = sampler.open(vec![tokens(100, 1).into()], WARM, 1);
    let mut short = sampler.open(vec![tokens(5, 1).into()], WARM, 1);
    let refused = long.turn(&[], &[], 5).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a conversation of 100 tokens needs 0.062 MiB for its keys and values, the limit per worker is 0.031 MiB"
    );
    assert!(refused.hint().unwrap().contains("kv_cache_mib"));
    assert_eq!(short.turn(&[], &[], 5).await.unwrap().tokens.len(), 5);
    // It outgrows its reservation in the middle of a turn, and may end with a shorter output.
    assert!(matches!(short.turn(&[], &[], 90).await, Err(EngineError::Cache { .. })));
    assert_eq!(short.turn(&[], &[], 5).await.unwrap().tokens.len(), 5);
}

#[tokio::test]
async fn a_conversation_that_cannot_fit_is_refused_before_it_starts() {
    let spec =
        |threads| EngineSpec { threads: Some(threads), kv_cache_mib: Some(1), ..EngineSpec::default() };
    let config = long_context().config;
    let panels = (1 << 20) / PANELS;
    for (threads, most) in [(1, 32 * panels), (4, 8 * panels)] {
        assert!(spec(threads).check_conversation(&config, Format::F32, most).is_ok());
        let refused = spec(threads).check_conversation(&config, Format::F32, most + 1);
        assert!(matches!(refused, Err(EngineError::Cache { .. })), "{threads} workers share the bound");
    }
    let sampler = Sampler::bounded(long_context(), 1, 1 << 20);
    let mut long = sampler.open(vec![tokens(32 * panels + 1, 1).into()], WARM, 1);
    assert!(matches!(long.turn(&[], &[], 1).await, Err(EngineError::Cache { .. })));
}

#[tokio::test]
async fn a_long_prompt_does_not_delay_decoding() {
    let sampler = Sampler::bounded(long_context(), 1, usize::MAX);
    let mut quick = sampler.open(vec![tokens(5, 1).into()], WARM, 1);
    quick.turn(&[], &[], 1).await.unwrap();
    let mut long = sampler.open(vec![tokens(6000, 2).into()], WARM, 2);
    let (mut prompt, mut turn) = (Box::pin(long.turn(&[], &[], 1)), Box::pin(quick.turn(&[], &[], 6)));
    let first = futures::future::select(&mut prompt, &mut turn).await;
    assert!(matches!(first, futures::future::Either::Right(_)), "6 tokens take 6 steps, the prompt 12");
}

#[tokio::test]
async fn a_sequence_that_is_dropped_during_a_turn_releases_its_memory() {
    let sampler = Sampler::bounded(long_context(), 1, 96 * PANELS);
    let mut holder = sampler.open(vec![tokens(60, 1).into()], WARM, 1);
    // Far more than can be sampled before the first poll.
    assert!(holder.turn(&[], &[], 2900).now_or_never().is_none());
    drop(holder);
    let mut next = sampler.open(vec![tokens(60, 2).into()], WARM, 2);
    assert_eq!(next.turn(&[], &[], 60).await.unwrap().tokens.len(), 60);
    assert!(sampler.usage().sampled.load(Ordering::Relaxed) < 1000);
}

#[tokio::test]
async fn a_turn_whose_result_was_not_read_is_undone() {
    let sampler = Sampler::bounded(decoder(), 1, usize::MAX);
    let (mut first, mut second) = loop {
        let open = || sampler.open(vec![tokens(20, 1).into()], WARM, 1);
        let (mut first, second) = (open(), open());
        {
            let mut turn = Box::pin(first.turn(&[7], &[], 3));
            if (&mut turn).now_or_never().is_some() {
                // It ended before the first poll, so its result was read.
                continue;
            }
            // Its result is not yet read, or the turn is still running.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        break (first, second);
    };
    let (found, expected) =
        (first.turn(&[8], &[], 5).await.unwrap(), second.turn(&[8], &[], 5).await.unwrap());
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_turn_whose_future_is_dropped_stops_sampling() {
    let sampler = Sampler::bounded(long_context(), 1, usize::MAX);
    let mut sequence = sampler.open(vec![tokens(60, 1).into()], WARM, 1);
    assert!(sequence.turn(&[], &[], 4000).now_or_never().is_none());
    let count = || sampler.usage().sampled.load(Ordering::Relaxed);
    let mut before = count();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match count() {
            now if now == before => break,
            now => before = now,
        }
    }
    assert!(before < 2000, "{before} tokens were sampled for nobody");
}

#[tokio::test]
async fn a_listener_gets_the_tokens_of_a_turn_as_they_are_sampled() {
    let sampler = Sampler::bounded(decoder(), 1, usize::MAX);
    let mut sequence = sampler.open(vec![tokens(20, 1).into()], WARM, 1);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let turn = sequence.streamed_turn(&[], &[], 12, Some(sender)).await.unwrap();
    let mut heard = Vec::new();
    while let Some(token) = receiver.recv().await {
        heard.push(token);
    }
    let sampled = turn.tokens.iter().copied().zip(turn.logprobs.iter().copied());
    assert_eq!(heard, sampled.collect::<Vec<_>>());
    // A listener who leaves changes nothing.
    let (sender, _) = tokio::sync::mpsc::unbounded_channel();
    let mut other = sampler.open(vec![tokens(20, 1).into()], WARM, 1);
    assert_eq!(other.streamed_turn(&[], &[], 12, Some(sender)).await.unwrap(), turn);
}
