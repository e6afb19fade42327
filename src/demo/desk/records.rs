//! The records of the service desk, drawn from the lists below with a fixed seed. They are the same on every machine.
//!
//! Every name occurs once. The least busy agent of a team is one agent. No customer has more than three tickets of a
//! status. Nothing here reads a clock or a source of entropy.

use std::fmt;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::random::shuffle;

pub(super) const STATUSES: [&str; 3] = ["open", "pending", "closed"];
pub(super) const PRIORITIES: [&str; 3] = ["low", "normal", "urgent"];

const SEED: u64 = 8;

const TEAMS: [&str; 8] =
    ["Billing", "Network", "Hardware", "Access", "Mobile", "Backup", "Printing", "Video"];
const PLANS: [&str; 3] = ["basic", "plus", "gold"];
const AGENTS: [&str; 24] = [
    "Ada", "Ben", "Cleo", "Dev", "Eva", "Finn", "Gil", "Hana", "Ines", "Jack", "Kim", "Lee", "Mona", "Nils",
    "Olga", "Pete", "Rosa", "Sam", "Tara", "Udo", "Vik", "Wim", "Yara", "Zoe",
];
/// First and second words of the customers' names.
const CUSTOMERS: [(&str, &str); 40] = [
    ("Acorn", "Rail"),
    ("Amber", "Foods"),
    ("Anchor", "Bank"),
    ("Arrow", "Travel"),
    ("Aspen", "Books"),
    ("Atlas", "Motors"),
    ("Birch", "Energy"),
    ("Bright", "Dental"),
    ("Canyon", "Water"),
    ("Cedar", "Law"),
    ("Cobalt", "Films"),
    ("Coral", "Hotels"),
    ("Crown", "Paper"),
    ("Delta", "Steel"),
    ("Dune", "Solar"),
    ("Ember", "Glass"),
    ("Falcon", "Post"),
    ("Fjord", "Fish"),
    ("Garnet", "Shoes"),
    ("Harbor", "Grain"),
    ("Hazel", "Optics"),
    ("Iris", "Media"),
    ("Ivory", "Pianos"),
    ("Jade", "Tea"),
    ("Kite", "Games"),
    ("Lark", "Radio"),
    ("Lunar", "Labs"),
    ("Maple", "Toys"),
    ("Meadow", "Dairy"),
    ("Nova", "Clinic"),
    ("Onyx", "Tools"),
    ("Opal", "Watches"),
    ("Pearl", "Ferries"),
    ("Pine", "Timber"),
    ("Quartz", "Mining"),
    ("Raven", "Press"),
    ("Ruby", "Bakery"),
    ("Stone", "Roofs"),
    ("Tulip", "Farms"),
    ("Willow", "School"),
];

pub(super) struct Customer {
    pub id: String,
    pub name: String,
    pub plan: &'static str,
}

impl Customer {
    /// What people call the customer.
    pub(super) fn short(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }
}

pub(super) struct Agent {
    pub name: String,
    pub team: &'static str,
}

#[derive(Clone, PartialEq)]
pub(super) struct Ticket {
    pub id: String,
    /// The customer's id.
    pub customer: String,
    pub status: &'static str,
    pub priority: &'static str,
    pub agent: String,
}

/// A row of a list of tickets.
impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, status, priority, agent, .. } = self;
        write!(f, "{id} | {status} | {priority} | {agent}")
    }
}

pub(super) struct Records {
    pub customers: Vec<Customer>,
    pub agents: Vec<Agent>,
    /// By age, oldest first.
    pub tickets: Vec<Ticket>,
}

/// A letter and a digit: short ids need few tokens.
fn ticket_id(index: usize) -> String {
    const LETTERS: &[u8; 20] = b"ABDEFGHJKLMNPQRSTUVW";
    format!("{}{}", char::from(LETTERS[index % LETTERS.len()]), index / LETTERS.len())
}

impl Records {
    pub(super) fn new() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let customer = |(index, (first, second)): (usize, &(&str, &str))| Customer {
            id: format!("C{}", index + 11),
            name: format!("{first} {second}"),
            plan: PLANS[index * 7 % PLANS.len()],
        };
        let customers: Vec<Customer> = CUSTOMERS.iter().enumerate().map(customer).collect();
        let agent = |(index, name): (usize, &&str)| Agent {
            name: (*name).to_owned(),
            team: TEAMS[index % TEAMS.len()],
        };
        let agents: Vec<Agent> = AGENTS.iter().enumerate().map(agent).collect();

        // Customer and status of each ticket: one to three open ones, up to two pending and closed ones.
        let mut kinds = Vec::new();
        for customer in &customers {
            let mut add = |status, count: u64| {
                kinds.extend((0..count).map(|_| (customer.id.clone(), status)));
            };
            add("open", 1 + rng.next_u64() % 3);
            add("pending", 1 + rng.next_u64() % 2);
            add("closed", rng.next_u64() % 3);
        }
        shuffle(&mut kinds, &mut rng);
        let ticket = |(index, (customer, status)): (usize, (String, &'static str))| Ticket {
            id: ticket_id(index),
            customer,
            status,
            priority: PRIORITIES[(rng.next_u64() % 3) as usize],
            agent: String::new(),
        };
        let mut tickets: Vec<Ticket> = kinds.into_iter().enumerate().map(ticket).collect();

        // One agent of each team has the fewest open tickets; the others take turns.
        let mut idle: Vec<usize> =
            (0..TEAMS.len()).map(|team| team + TEAMS.len() * (rng.next_u64() % 3) as usize).collect();
        idle.sort_unstable();
        let busy: Vec<usize> = (0..agents.len()).filter(|index| !idle.contains(index)).collect();
        for (index, ticket) in tickets.iter_mut().enumerate() {
            ticket.agent.clone_from(&agents[busy[index % busy.len()]].name);
        }
        Self { customers, agents, tickets }
    }

    pub(super) fn teams(&self) -> [&'static str; TEAMS.len()] {
        TEAMS
    }
}
