//! What running stages share: devices, server sessions, and general slots.
//!
//! A stage that uses the engine gets its own devices; one that uses the servers gets a number of sessions of each server that
//! limits them, so that all stages together stay within each limit. A
//! share is what is free divided by the stages that could start now, so a single stage gets everything. On
//! one device, stages that use the engine take turns, since the engine fills a device by itself. Devices that
//! already hold the weights of the stage's models are preferred; among equals, the first in the run file.
//! A stage that waits for another run has no share.

use std::collections::BTreeMap;

use crate::{
    engine::{EngineSpec, SplitMode},
    stage::card::Section,
};

/// Maximum number of concurrent stages that use neither devices nor sessions.
const OTHERS: usize = 4;

/// Resources reserved for one stage until it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    /// Names of the devices, in the run file's order.
    pub devices: Vec<String>,
    /// Sessions by server, of those that limit them.
    pub sessions: BTreeMap<String, usize>,
    numbers: Vec<usize>,
    other: bool,
}

/// Numbers of stages that could start now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waiters {
    pub engine: usize,
    pub server: usize,
}

struct Device {
    name: String,
    busy: bool,
}

pub struct Slots {
    devices: Vec<Device>,
    /// A stage takes all devices: the layers of its model are spread over them.
    all_at_once: bool,
    /// Those that are free, by server.
    sessions: BTreeMap<String, usize>,
    others: usize,
}

impl Slots {
    /// `sessions`: the limits of the servers that have one.
    pub fn new(engine: &EngineSpec, sessions: BTreeMap<String, usize>) -> Self {
        let device = |name: &String| Device { name: name.clone(), busy: false };
        let devices = engine.devices.iter().map(device).collect();
        let all_at_once = engine.split == SplitMode::Layers;
        Self { devices, all_at_once, sessions, others: OTHERS }
    }

    /// Reserves a share for a stage that uses these sections; none while too little is free. `loaded`
    /// returns how many of the models that the stage reads are loaded on the named device.
    pub fn take(
        &mut self,
        uses: &[Section],
        loaded: impl Fn(&str) -> usize,
        waiters: Waiters,
    ) -> Option<Share> {
        let (engine, server) = (uses.contains(&Section::Engine), uses.contains(&Section::Server));
        let free: Vec<usize> = (0..self.devices.len()).filter(|index| !self.devices[*index].busy).collect();
        let lacking =
            (engine && free.is_empty()) || (server && self.sessions.values().any(|free| *free == 0));
        let other = !engine && !server;
        if lacking || (other && self.others == 0) {
            return None;
        }
        let mut share = Share { other, ..Share::default() };
        self.others -= usize::from(other);
        if server {
            for (name, free) in &mut self.sessions {
                let own = free.div_ceil(waiters.server.max(1));
                *free -= own;
                share.sessions.insert(name.clone(), own);
            }
        }
        if engine {
            let sharing = if self.all_at_once { 1 } else { waiters.engine.max(1) };
            let wanted = free.len().div_ceil(sharing);
            let mut numbers = free;
            numbers.sort_by_cached_key(|index| std::cmp::Reverse(loaded(&self.devices[*index].name)));
            numbers.truncate(wanted);
            numbers.sort_unstable();
            for number in &numbers {
                let device = &mut self.devices[*number];
                device.busy = true;
                share.devices.push(device.name.clone());
            }
            share.numbers = numbers;
        }
        Some(share)
    }

    pub fn give_back(&mut self, share: &Share) {
        self.others += usize::from(share.other);
        for (name, own) in &share.sessions {
            *self.sessions.entry(name.clone()).or_default() += own;
        }
        for number in &share.numbers {
            self.devices[*number].busy = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: [Section; 1] = [Section::Engine];
    const BOTH: [Section; 2] = [Section::Server, Section::Engine];

    fn slots(devices: usize) -> Slots {
        Slots::new(&engine(devices), limits(&[("crm", 4)]))
    }

    fn engine(devices: usize) -> EngineSpec {
        let devices = (0..devices).map(|index| format!("cuda:{index}")).collect();
        EngineSpec { devices, ..EngineSpec::default() }
    }

    fn limits(limits: &[(&str, usize)]) -> BTreeMap<String, usize> {
        limits.iter().map(|(name, sessions)| ((*name).to_owned(), *sessions)).collect()
    }

    fn none(_: &str) -> usize {
        0
    }

    fn waiters(engine: usize, server: usize) -> Waiters {
        Waiters { engine, server }
    }

    #[test]
    fn a_single_stage_gets_everything_and_the_next_waits() {
        let mut slots = slots(2);
        let first = slots.take(&BOTH, none, waiters(1, 1)).unwrap();
        assert_eq!((first.devices.len(), &first.sessions), (2, &limits(&[("crm", 4)])));
        assert_eq!(slots.take(&ENGINE, none, waiters(1, 0)), None);
        slots.give_back(&first);
        assert!(slots.take(&ENGINE, none, waiters(1, 0)).is_some());
    }

    #[test]
    fn stages_that_can_start_at_once_share_devices_and_sessions() {
        let mut slots = slots(3);
        let first = slots.take(&BOTH, none, waiters(2, 2)).unwrap();
        let second = slots.take(&BOTH, none, waiters(1, 1)).unwrap();
        assert_eq!(first.devices, ["cuda:0", "cuda:1"]);
        assert_eq!(second.devices, ["cuda:2"]);
        assert_eq!((first.sessions, second.sessions), (limits(&[("crm", 2)]), limits(&[("crm", 2)])));
    }

    #[test]
    fn a_model_that_is_spread_over_the_devices_takes_all_of_them() {
        let engine = EngineSpec { split: SplitMode::Layers, ..engine(3) };
        let mut slots = Slots::new(&engine, BTreeMap::new());
        assert_eq!(slots.take(&ENGINE, none, waiters(2, 0)).unwrap().devices.len(), 3);
        assert_eq!(slots.take(&ENGINE, none, waiters(1, 0)), None);
    }

    #[test]
    fn all_stages_together_stay_within_the_limit_of_each_server() {
        let of_each = limits(&[("crm", 2), ("desk", 10)]);
        let mut slots = Slots::new(&engine(0), of_each.clone());
        let server = [Section::Server];
        let first = slots.take(&server, none, waiters(0, 3)).unwrap();
        let second = slots.take(&server, none, waiters(0, 2)).unwrap();
        for name in ["crm", "desk"] {
            assert!(first.sessions[name] > 0 && second.sessions[name] > 0);
            assert!(first.sessions[name] + second.sessions[name] <= of_each[name], "{name}");
        }
        assert_eq!(slots.take(&server, none, waiters(0, 1)), None, "no session of `crm` is free");
        slots.give_back(&first);
        slots.give_back(&second);
        assert_eq!(slots.take(&server, none, waiters(0, 1)).unwrap().sessions, of_each);
    }

    #[test]
    fn stages_of_servers_without_a_limit_do_not_wait_for_each_other() {
        let mut slots = Slots::new(&engine(0), BTreeMap::new());
        assert!((0..3).all(|_| slots.take(&[Section::Server], none, waiters(0, 1)).is_some()));
    }

    #[test]
    fn a_stage_gets_the_device_that_has_its_model_loaded_else_the_first() {
        let mut slots = slots(3);
        let loaded = |device: &str| usize::from(device == "cuda:1");
        let first = slots.take(&ENGINE, loaded, waiters(3, 0)).unwrap();
        assert_eq!(first.devices, ["cuda:1"]);
        assert_eq!(slots.take(&ENGINE, loaded, waiters(2, 0)).unwrap().devices, ["cuda:0"]);
        slots.give_back(&first);
        assert_eq!(slots.take(&ENGINE, none, waiters(2, 0)).unwrap().devices, ["cuda:1"]);
    }

    #[test]
    fn at_most_four_stages_without_engine_or_server_run_at_once() {
        let mut slots = slots(1);
        let shares: Vec<Share> = (0..4).map(|_| slots.take(&[], none, waiters(0, 0)).unwrap()).collect();
        assert_eq!(slots.take(&[], none, waiters(0, 0)), None);
        slots.give_back(&shares[0]);
        assert!(slots.take(&[], none, waiters(0, 0)).is_some());
    }
}
