use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    mcp::{Limits, ServerSpec, State, Transport, demo},
    progress::Silent,
};

/// The demo server, over HTTP on this machine.
async fn server() -> ServerSpec {
    let server = demo::HttpServer::bind("sqlite", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let url = server.url().unwrap();
    tokio::spawn(server.serve());
    let transport = Transport::Http { url, bearer_env: None, headers: BTreeMap::new() };
    ServerSpec { transport, state: State::ReadOnly, limits: Limits::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn try_it() {
    let families = Families::load(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/sqlite.families.toml"))).unwrap();
    let spec = server().await;
    let session = crate::mcp::Session::connect(&spec).await.unwrap();
    let (_, tools, _) = session.describe().await.unwrap();
    let live = Live::new(&spec, &tools);
    let quota = Quota { per_family: 240, per_split: 120 };
    let start = std::time::Instant::now();
    let made = grounded::generate(&families, &tools, &live, quota, 7, &Silent, &Default::default()).await.unwrap();
    println!("{:?} {} calls", start.elapsed(), live.calls());
    println!("{:#?}", metrics(&made));
    let mut per: BTreeMap<(&str, &str), Vec<&Scenario>> = BTreeMap::new();
    for s in made.train.iter().chain(&made.heldout) {
        per.entry((&s.split, &s.family)).or_default().push(s);
    }
    for ((split, family), list) in per {
        println!("{split} {family}: {}", list.len());
        for s in list.iter().take(3) {
            println!("    {} -> {:?}", s.task, s.answer);
        }
    }
    let known: BTreeSet<&str> = made.train.iter().flat_map(words).collect();
    for split in ["a", "b", "c"] {
        let new: BTreeSet<&str> = made.heldout.iter().filter(|s| s.split == split).flat_map(words).filter(|w| !known.contains(w)).collect();
        println!("new in {split}: {new:?}");
    }
}
