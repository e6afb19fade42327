//! Tests frozen weights that stay between stages: loaded once, never changed, and evicted for others.

use std::{path::Path, sync::Barrier};

use mcprl_base::{error::Diagnostic, hash::Digest};

use super::*;
use crate::model::ops::composed;

/// A model on disk, different for every name.
struct Stored {
    folder: tempfile::TempDir,
    digest: Digest,
}

fn stored(name: &str) -> Stored {
    let folder = tempfile::tempdir().unwrap();
    let seed = Digest::of(name.as_bytes()).seed();
    Decoder::random(config(), Init { seed, deviation: 0.15 }).unwrap().save(folder.path()).unwrap();
    Stored { folder, digest: Digest::of(name.as_bytes()) }
}

impl Stored {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn load(
        &self,
        cache: &Arc<ModelCache>,
        devices: usize,
        format: Format,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        self.load_with_workspace(cache, devices, format, 0)
    }

    fn load_with_workspace(
        &self,
        cache: &Arc<ModelCache>,
        devices: usize,
        format: Format,
        workspace_bytes: usize,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        let devices = vec!["cpu".to_owned(); devices];
        let spec = EngineSpec { devices, threads: Some(3), dtype: Some(format), ..EngineSpec::default() };
        cache.load(Checkpoint { digest: self.digest, folder: self.path() }, &spec, workspace_bytes)
    }

    fn is_in(&self, cache: &ModelCache) -> bool {
        cache.contains(&self.digest, "cpu")
    }
}

fn bytes() -> usize {
    model_bytes(&config(), Format::F32)
}

fn adapt(decoder: &mut Decoder) {
    Adapter::fresh(decoder, &AdapterConfig::new(4, 8.0), 5).unwrap();
}

/// The optimizer's state and the parameters after two steps on these devices.
fn trained(mut decoder: Decoder, devices: &DeviceSet) -> Vec<u8> {
    adapt(&mut decoder);
    let rule = Rule::AdamW { rate: 1e-2, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };
    let mut trainer = Trainer::across(decoder, |all| vec![rule; all.len()], devices).unwrap();
    let batches: Vec<_> = branching().chunks(2).map(|pair| Microbatch::new(pair).0).collect();
    for _ in 0..2 {
        trainer.step(&batches, &|_, _, p| 0.01 * p, 1.0, 1.0).unwrap();
    }
    safetensors::serialize(trainer.state().unwrap(), None).unwrap()
}

#[test]
fn a_model_is_loaded_once_for_all_users() {
    let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
    let (first, _) = model.load(&cache, 1, Format::F32).unwrap();
    for devices in [1, 3] {
        let (decoder, set) = model.load(&cache, devices, Format::F32).unwrap();
        assert!(decoder.embedding.shares_memory_with(&first.embedding));
        for slot in &set.others {
            let replica = slot.base.as_ref().unwrap().decoder().unwrap();
            assert!(
                replica.layers[1].linears[2].weight.shares_memory_with(&first.layers[1].linears[2].weight)
            );
        }
    }
    assert_eq!(cache.loads(), 1);
}

#[test]
fn a_model_whose_layers_are_spread_is_loaded_once_for_all_devices() {
    let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
    let spec = EngineSpec {
        devices: vec!["cpu".into(); 2],
        split: SplitMode::Layers,
        dtype: Some(Format::F32),
        ..EngineSpec::default()
    };
    let load = || cache.load(Checkpoint { digest: model.digest, folder: model.path() }, &spec, 0).unwrap();
    let (first, devices) = load();
    let (second, _) = load();
    assert!(devices.others.iter().all(|slot| slot.base.is_none()));
    assert_eq!((second.placement().devices().len(), cache.loads()), (2, 1));
    let [first, second] = [&first, &second].map(|decoder| &decoder.layers.last().unwrap().linears[0].weight);
    assert!(second.shares_memory_with(first));
}

#[tokio::test]
async fn a_closed_sampler_has_released_its_models() {
    let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
    for _ in 0..20 {
        let (decoder, devices) = model.load(&cache, 2, Format::F32).unwrap();
        let sampler = Sampler::across(decoder, &devices, None).unwrap();
        play(&sampler, 6).await;
        let loaded = || devices.slots().map(|slot| slot.base.as_ref().unwrap());
        assert!(loaded().all(|base| base.is_in_use()));
        sampler.close().await;
        assert!(!loaded().any(|base| base.is_in_use()));
    }
}

#[test]
fn another_format_or_model_is_loaded_separately() {
    let (cache, a, b) = (Arc::<ModelCache>::default(), stored("a"), stored("b"));
    for (model, format, loads) in
        [(&a, Format::F32, 1), (&a, Format::Bf16, 2), (&b, Format::Bf16, 3), (&a, Format::F32, 3)]
    {
        let (decoder, _) = model.load(&cache, 1, format).unwrap();
        assert_eq!((decoder.layers[0].linears[0].weight.format(), cache.loads()), (format, loads));
    }
}

#[tokio::test]
async fn a_cached_model_samples_and_trains_like_one_loaded_alone() {
    let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
    for (count, format) in [(1, Format::F32), (2, Format::F32), (2, Format::Bf16)] {
        let devices = DeviceSet::cpu(count, 3);
        let own = || load_frozen(model.path(), format, &candle_core::Device::Cpu).unwrap();
        let expected = trained(own(), &devices);
        let mut uncached = own();
        adapt(&mut uncached);
        let expected_samples = play(&Sampler::across(uncached, &devices, None).unwrap(), 6).await;
        for _ in 0..2 {
            let (decoder, devices) = model.load(&cache, count, format).unwrap();
            assert!(trained(decoder, &devices) == expected);
            let (mut decoder, devices) = model.load(&cache, count, format).unwrap();
            adapt(&mut decoder);
            assert_eq!(play(&Sampler::across(decoder, &devices, None).unwrap(), 6).await, expected_samples);
        }
    }
    assert_eq!(cache.loads(), 2);
}

#[test]
fn training_all_weights_does_not_change_the_cached_model() {
    for by_kernels in [true, false] {
        let _forced = (!by_kernels).then(composed::force);
        let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
        let values = |decoder: &Decoder| -> Vec<Vec<f32>> {
            decoder.tensors().unwrap().iter().map(|(_, tensor)| ops::read(tensor).unwrap()).collect()
        };
        let (mut whole, _) = model.load(&cache, 1, Format::F32).unwrap();
        let before = values(&whole);
        for parameter in whole.trained().unwrap() {
            let zeros = parameter.tensor().zeros_like().unwrap();
            composed::assign(parameter.tensor(), &zeros).unwrap();
        }
        assert!(values(&whole).iter().flatten().all(|value| *value == 0.0));
        assert_eq!(values(&model.load(&cache, 1, Format::F32).unwrap().0), before);
    }
}

#[test]
fn the_least_recently_requested_model_is_evicted() {
    let [a, b, c] = ["a", "b", "c"].map(stored);
    let cache = ModelCache::with_available(bytes());
    for model in [&a, &b, &a] {
        model.load(&cache, 1, Format::F32).unwrap();
    }
    assert!(a.is_in(&cache) && b.is_in(&cache));
    // There is room for one of the two.
    c.load_with_workspace(&cache, 1, Format::F32, bytes() / 2).unwrap();
    assert_eq!([&a, &b, &c].map(|model| model.is_in(&cache)), [true, false, true]);
}

#[test]
fn a_workspace_evicts_models_too() {
    let (cache, a, b) = (ModelCache::with_available(2 * bytes()), stored("a"), stored("b"));
    b.load(&cache, 1, Format::F32).unwrap();
    a.load(&cache, 1, Format::F32).unwrap();
    a.load_with_workspace(&cache, 1, Format::F32, 2 * bytes()).unwrap();
    assert!(b.is_in(&cache));
    a.load_with_workspace(&cache, 1, Format::F32, 2 * bytes() + 1).unwrap();
    assert!(a.is_in(&cache) && !b.is_in(&cache));
    cache.make_room(&DeviceSet::cpu(2, 2), usize::MAX);
    assert!(!a.is_in(&cache));
}

#[test]
fn sampling_that_needs_memory_evicts_a_model() {
    let (cache, a, b) = (ModelCache::with_available(bytes()), stored("a"), stored("b"));
    b.load(&cache, 1, Format::F32).unwrap();
    let (decoder, devices) = a.load(&cache, 1, Format::F32).unwrap();
    let spec = EngineSpec::default();
    assert!(b.is_in(&cache));
    // Still refused: almost no memory is available on this machine.
    assert!(Sampler::new(decoder, &devices, &spec).is_err_and(|error| error.code() == "engine::memory"));
    assert!(!b.is_in(&cache));
}

#[test]
fn models_in_use_are_evicted_last() {
    let [a, b, c] = ["a", "b", "c"].map(stored);
    let cache = ModelCache::with_available(bytes());
    let in_use = a.load(&cache, 1, Format::F32).unwrap();
    b.load(&cache, 1, Format::F32).unwrap();
    c.load_with_workspace(&cache, 1, Format::F32, bytes() / 2).unwrap();
    assert_eq!([&a, &b, &c].map(|model| model.is_in(&cache)), [true, false, true]);
    c.load_with_workspace(&cache, 1, Format::F32, usize::MAX).unwrap();
    assert_eq!([&a, &c].map(|model| model.is_in(&cache)), [false, true]);
    drop(in_use);
}

#[test]
fn models_that_no_stage_will_read_are_evicted() {
    let (cache, a, b) = (Arc::<ModelCache>::default(), stored("a"), stored("b"));
    a.load(&cache, 1, Format::F32).unwrap();
    b.load(&cache, 1, Format::F32).unwrap();
    cache.retain(|digest| *digest == b.digest);
    assert_eq!([&a, &b].map(|model| model.is_in(&cache)), [false, true]);
    cache.evict_devices(&["cuda:0".to_owned()]);
    assert!(b.is_in(&cache));
    cache.evict_devices(&["cpu".to_owned()]);
    assert!(cache.is_empty());
}

#[test]
fn concurrent_requests_wait_for_one_load() {
    let (cache, model, barrier) = (Arc::<ModelCache>::default(), stored("a"), Barrier::new(6));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                barrier.wait();
                model.load(&cache, 1, Format::F32).unwrap();
            });
        }
    });
    assert_eq!(cache.loads(), 1);
}

#[test]
fn a_failed_load_leaves_nothing_in_the_cache() {
    let (cache, model) = (Arc::<ModelCache>::default(), stored("a"));
    let weights = model.path().join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    assert!(model.load(&cache, 1, Format::F32).is_err());
    assert!(!model.is_in(&cache));
    std::fs::write(&weights, &whole).unwrap();
    model.load(&cache, 1, Format::F32).unwrap();
    assert!(model.is_in(&cache));
}

#[test]
fn weights_that_do_not_fit_are_refused_after_evictions() {
    let (cache, a, b) = (ModelCache::with_available(bytes() / 3), stored("a"), stored("b"));
    let refused = a.load(&cache, 1, Format::F32).unwrap_err();
    assert_eq!((refused.code(), a.is_in(&cache)), ("engine::memory", false));
    a.load(&cache, 1, Format::Nf4).unwrap();
    assert_eq!(b.load(&cache, 1, Format::F32).unwrap_err().code(), "engine::memory");
    assert!(!a.is_in(&cache) && !b.is_in(&cache));
}
