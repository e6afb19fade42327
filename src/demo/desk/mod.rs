//! A service desk: tickets of customers, worked on by the agents of teams. Tools read and change the tickets.
//!
//! Over HTTP each session has tickets of its own. Over stdio the tool `reset` restores those of the start. The tool
//! `list_changes` compares the tickets with those of the start, so a check after an episode sees what was changed and that
//! nothing else was. Neither is meant for an agent: a run file keeps them out of its tools.
//!
//! Errors begin with their kind: `not_found`, `invalid_argument`, `invalid_state` or `conflict`. A conflict is no fault of
//! the caller: somebody else has a fifth of the tickets open, so the first change of such a ticket is refused, and the
//! same call works the next time.

mod records;

use std::{collections::BTreeSet, fmt::Write, sync::Arc};

use parking_lot::Mutex;
use rmcp::model::Tool;

use super::server::{
    Answer, Arguments, Demo,
    Effect::{Reads, Writes},
    tool,
};
use records::{Customer, PRIORITIES, Records, STATUSES, Ticket};

/// Rows of a page.
const PAGE: usize = 6;
/// Orders of a customer's tickets.
const OLDEST: &str = "oldest";
const NEWEST: &str = "newest";
/// The columns of a ticket.
const COLUMNS: &str = "id | status | priority | agent";

pub(super) struct Desk {
    records: Arc<Records>,
    state: Mutex<State>,
}

/// What calls change.
struct State {
    tickets: Vec<Ticket>,
    /// Tickets that somebody else has open.
    locked: BTreeSet<String>,
}

impl State {
    fn of(records: &Records) -> Self {
        let locked = records.tickets.iter().skip(4).step_by(5).map(|ticket| ticket.id.clone()).collect();
        Self { tickets: records.tickets.clone(), locked }
    }
}

impl Desk {
    pub(super) fn open() -> Self {
        Self::of(Arc::new(Records::new()))
    }

    fn of(records: Arc<Records>) -> Self {
        Self { state: Mutex::new(State::of(&records)), records }
    }

    fn find_customer(&self, name: &str) -> Answer {
        let is_named = |known: &str| known.eq_ignore_ascii_case(name.trim());
        let customers = &self.records.customers;
        if let Some(Customer { id, name, plan }) = customers.iter().find(|known| is_named(&known.name)) {
            return Ok(format!("id | name | plan\n{id} | {name} | {plan}"));
        }
        let hint = match customers.iter().find(|known| is_named(known.short())) {
            Some(customer) => format!("did you mean {}?", customer.name),
            None => "list_customers lists them".to_owned(),
        };
        Err(format!("not_found: no customer named {name}; {hint}"))
    }

    fn list_customers(&self, offset: Option<&str>) -> Answer {
        let all = &self.records.customers;
        let start: usize = match offset {
            None => 0,
            Some(offset) => {
                let start = offset.trim().parse().ok().filter(|start| *start < all.len());
                start.ok_or_else(|| {
                    format!("invalid_argument: no offset {offset}; there are {} customers", all.len())
                })?
            }
        };
        let end = all.len().min(start + PAGE);
        let mut text = "name | short".to_owned();
        for customer in &all[start..end] {
            _ = write!(text, "\n{} | {}", customer.name, customer.short());
        }
        if end < all.len() {
            _ = write!(text, "\n(more from offset {end})");
        }
        Ok(text)
    }

    fn list_tickets(&self, tickets: &[Ticket], customer: &str, [status, order]: [Option<&str>; 2]) -> Answer {
        if !self.records.customers.iter().any(|known| known.id == customer) {
            return Err(format!("not_found: no customer with id {customer}; find_customer gives the id"));
        }
        let status = status.map(|status| one_of("status", status, &STATUSES)).transpose()?;
        let order = order.map_or(Ok(OLDEST), |order| one_of("order", order, &[OLDEST, NEWEST]))?;
        let is_wanted = |ticket: &&Ticket| {
            ticket.customer == customer && status.is_none_or(|status| ticket.status == status)
        };
        let mut wanted: Vec<&Ticket> = tickets.iter().filter(is_wanted).collect();
        if order == NEWEST {
            wanted.reverse();
        }
        let mut text = COLUMNS.to_owned();
        for ticket in wanted {
            _ = write!(text, "\n{ticket}");
        }
        Ok(text)
    }

    fn list_agents(&self, tickets: &[Ticket], team: Option<&str>) -> Answer {
        let team = team.map(|team| one_of("team", team, &self.records.teams())).transpose()?;
        let open = |agent: &str| {
            tickets.iter().filter(|ticket| ticket.agent == agent && ticket.status == "open").count()
        };
        let members = self.records.agents.iter().filter(|agent| team.is_none_or(|team| agent.team == team));
        let mut members: Vec<(usize, &str)> =
            members.map(|agent| (open(&agent.name), &*agent.name)).collect();
        members.sort_unstable();
        let mut text = "agent | open".to_owned();
        for (open, agent) in members {
            _ = write!(text, "\n{agent} | {open}");
        }
        Ok(text)
    }

    fn change(&self, State { tickets, locked }: &mut State, id: &str, change: Change<'_>) -> Answer {
        let ticket = tickets.iter_mut().find(|ticket| ticket.id == id);
        let ticket =
            ticket.ok_or_else(|| format!("not_found: no ticket with id {id}; list_tickets gives the id"))?;
        if locked.remove(id) {
            return Err(format!("conflict: ticket {id} is being edited; call again"));
        }
        match change {
            Change::Status(status) => ticket.status = one_of("status", status, &STATUSES)?,
            _ if ticket.status == "closed" => {
                return Err(format!("invalid_state: ticket {id} is closed; set its status to open first"));
            }
            Change::Priority(priority) => ticket.priority = one_of("priority", priority, &PRIORITIES)?,
            Change::Agent(name) => {
                let agent = self.records.agents.iter().find(|agent| agent.name.eq_ignore_ascii_case(name));
                let agent = agent
                    .ok_or_else(|| format!("not_found: no agent named {name}; list_agents lists a team"))?;
                ticket.agent.clone_from(&agent.name);
            }
        }
        Ok(format!("{COLUMNS}\n{ticket}"))
    }

    /// The tickets that are not as they were at the start.
    fn changes(&self, tickets: &[Ticket]) -> String {
        let mut text = COLUMNS.to_owned();
        for (now, before) in tickets.iter().zip(&self.records.tickets).filter(|(now, before)| now != before) {
            let Ticket { id, status, priority, agent, .. } = now;
            let was = |now: &str, before: &str| if now == before { "=".to_owned() } else { now.to_owned() };
            let cells =
                [was(status, before.status), was(priority, before.priority), was(agent, &before.agent)];
            _ = write!(text, "\n{id} | {}", cells.join(" | "));
        }
        text
    }
}

enum Change<'a> {
    Status(&'a str),
    Priority(&'a str),
    Agent(&'a str),
}

/// The one of the known values that is meant.
fn one_of<'k>(what: &str, value: &str, known: &[&'k str]) -> Result<&'k str, String> {
    let found = known.iter().find(|known| known.eq_ignore_ascii_case(value.trim()));
    found
        .copied()
        .ok_or_else(|| format!("invalid_argument: no {what} {value}; there are {}", known.join(", ")))
}

impl Demo for Desk {
    fn name(&self) -> &'static str {
        "mcprl-demo-desk"
    }

    fn tools(&self) -> Vec<Tool> {
        vec![
            tool("find_customer", "Finds a customer.", &["name"], Reads),
            tool("list_customers", "Lists the customers.", &["offset?"], Reads),
            tool(
                "list_tickets",
                "Lists a customer's tickets, oldest or newest first.",
                &["customer_id", "status?", "order?"],
                Reads,
            ),
            tool("list_teams", "Lists the teams.", &[], Reads),
            tool("list_agents", "Lists a team's agents, least busy first.", &["team?"], Reads),
            tool("assign_ticket", "Gives a ticket to an agent.", &["ticket_id", "agent"], Writes),
            tool("set_status", "Sets a ticket's status.", &["ticket_id", "status"], Writes),
            tool("set_priority", "Sets a ticket's priority.", &["ticket_id", "priority"], Writes),
            tool("list_changes", "Lists what has changed since the start.", &[], Reads),
            tool("reset", "Restores the tickets of the start.", &[], Writes),
        ]
    }

    fn call(&self, tool: &str, arguments: Arguments<'_>) -> Option<Answer> {
        let mut state = self.state.lock();
        let text = |name| arguments.text(name);
        Some(match tool {
            "find_customer" => text("name").and_then(|name| self.find_customer(name)),
            "list_customers" => arguments.optional("offset").and_then(|offset| self.list_customers(offset)),
            "list_tickets" => text("customer_id").and_then(|customer| {
                let [status, order] = ["status", "order"].map(|name| arguments.optional(name));
                self.list_tickets(&state.tickets, customer, [status?, order?])
            }),
            "list_teams" => Ok(format!("team\n{}", self.records.teams().join("\n"))),
            "list_agents" => {
                arguments.optional("team").and_then(|team| self.list_agents(&state.tickets, team))
            }
            "assign_ticket" => {
                text("ticket_id").and_then(|id| self.change(&mut state, id, Change::Agent(text("agent")?)))
            }
            "set_status" => {
                text("ticket_id").and_then(|id| self.change(&mut state, id, Change::Status(text("status")?)))
            }
            "set_priority" => text("ticket_id")
                .and_then(|id| self.change(&mut state, id, Change::Priority(text("priority")?))),
            "list_changes" => Ok(self.changes(&state.tickets)),
            "reset" => {
                *state = State::of(&self.records);
                Ok("reset".into())
            }
            _ => return None,
        })
    }

    fn session(&self) -> Option<Arc<dyn Demo>> {
        Some(Arc::new(Self::of(self.records.clone())))
    }
}

#[cfg(test)]
mod tests;
