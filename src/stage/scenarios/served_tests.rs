//! Families that servers state themselves, on worlds drawn from seeds.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    grounded::{Grounded, QuestionCounts},
    served::{self, Plan, tools_of},
    solution::Dropped,
    *,
};
use crate::{
    chat::ToolCall,
    data::{Scenario, Tool},
    demo,
    mcp::{self, ServerSpec, Servers, Session, State, Transport},
    progress::NoProgress,
};

/// Worlds with these seeds over local HTTP, by the names `w1`, `w2`, …, and the tools of all.
async fn worlds(seeds: &[u64]) -> (Servers, Vec<Tool>) {
    let mut by_name = BTreeMap::new();
    let mut lists = Vec::new();
    for seed in seeds {
        let kind = demo::Kind { name: "world", seed: *seed };
        let http = demo::HttpServer::bind(kind, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let server = ServerSpec::new(Transport::http(http.url().unwrap()), State::ReadOnly);
        tokio::spawn(http.serve());
        let session = Session::connect(&server).await.unwrap();
        lists.push((format!("w{seed}"), session.tools().await.unwrap()));
        session.close().await;
        by_name.insert(format!("w{seed}"), server);
    }
    (Servers::named(by_name), crate::offered::tool_rows(mcp::merged(lists)))
}

async fn generate(servers: &Servers, tools: &[Tool], share: f64) -> Grounded {
    let live = Live::new(servers, tools);
    let served = served::read(servers, &live, tools).await.unwrap();
    assert_eq!(served.len(), servers.names().count());
    let quota = QuestionCounts { per_family: 12, per_split: 30 };
    let plan = Plan { quota, share, seed: 1 };
    let made = served::generate(&served, tools, &live, plan, &NoProgress, &Default::default()).await.unwrap();
    live.close().await;
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn every_question_that_a_world_states_has_an_answer() {
    let seeds: Vec<u64> = (1..=12).collect();
    let (servers, tools) = worlds(&seeds).await;
    let made = generate(&servers, &tools, 0.0).await;
    let unanswered: Vec<_> = made.refused.iter().filter(|(_, why, _)| *why != Dropped::Duplicate).collect();
    assert!(unanswered.is_empty(), "{unanswered:?}");
    let asked: BTreeSet<&str> =
        made.train.iter().map(|task| task.server.as_ref().unwrap().0.as_str()).collect();
    assert_eq!(asked.len(), seeds.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_about_a_server_needs_that_servers_tools_alone() {
    let (servers, tools) = worlds(&[1, 2, 3]).await;
    let made = generate(&servers, &tools, 0.0).await;
    for task in made.train.iter().chain(&made.heldout) {
        let server = &task.server.as_ref().unwrap().0;
        assert!(task.family.starts_with(&format!("{server}/")), "{}", task.family);
        let offered: BTreeSet<String> =
            tools_of(&tools, Some(server)).into_iter().map(|tool| tool.name).collect();
        assert!(offered.contains(crate::answer::COMPLETE_TASK) && offered.len() < tools.len());
        let calls: Vec<ToolCall> = serde_json::from_str(task.reference.as_ref().unwrap()).unwrap();
        assert!(calls.iter().all(|call| offered.contains(&call.name)), "{calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_held_out_is_never_trained_on() {
    let (servers, tools) = worlds(&[1, 2, 3, 4, 5]).await;
    let made = generate(&servers, &tools, 0.4).await;
    let servers_of = |tasks: &[Scenario], split: &str| -> BTreeSet<String> {
        let of_split = tasks.iter().filter(|task| task.split == split);
        of_split.map(|task| task.server.as_ref().unwrap().0.clone()).collect()
    };
    let (trained, unseen) = (servers_of(&made.train, "train"), servers_of(&made.heldout, served::SPLIT));
    assert_eq!((trained.len(), unseen.len()), (3, 2));
    assert!(trained.is_disjoint(&unseen));
    assert!(servers_of(&made.heldout, "unseen_entities").is_subset(&trained));
    assert_eq!(made.heldout.iter().filter(|task| task.split == served::SPLIT).count(), 30);
    split::check_frozen(&made.train, &made.heldout, None).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_families_is_reported() {
    let http = demo::HttpServer::bind("desk", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let server = ServerSpec::new(Transport::http(http.url().unwrap()), State::ReadOnly);
    tokio::spawn(http.serve());
    let servers: Servers = server.into();
    let live = Live::new(&servers, &[]);
    let error = served::read(&servers, &live, &[]).await.err().unwrap();
    assert_eq!(error.code(), "scenarios::no_families_served");
}
