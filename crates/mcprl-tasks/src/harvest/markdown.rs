//! Records in Markdown: a list whose items have a name in bold, and a heading with `key: value` lines or front matter.
//!
//! Anything else is no record here.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;

use super::{Field, List, Record};

/// Longest value, and most records.
const VALUE_BYTES: usize = 400;
const RECORDS: usize = 200;
/// Fewest fields of a text that is a record.
const FIELDS: usize = 2;

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).expect("the pattern is valid"));
    };
}

pattern!(BOLD, r"^[-*+]\s+(?:\*\*|__)(.+?):?(?:\*\*|__):?\s*(?:\(([^)]*)\))?\s*(?:[:,]|[–—-]\s)?\s*(.*)$");
pattern!(HEADING, r"^(#{1,6})\s+(.+?)\s*#*$");
pattern!(KEY, r"^([A-Za-z][A-Za-z0-9 _/-]{0,40}?):\s+(\S.*)$");
pattern!(COUNT, r"^(\d[\d.,]*)\s+([a-z]+(?: [a-z]+)?)$");
pattern!(NUMBERED, r"^([a-z]+)\s+(\d+)$");
pattern!(WITHOUT, r"^no ([a-z]+)$");
pattern!(
    MOMENT,
    r"^(\d{4}-\d\d-\d\d)(?:,? (?:at |from )?(\d\d:\d\d)(?:\s*(?:-|–|to|until)\s*(\d\d:\d\d))?)?$"
);

/// The lists of a text; none if it has no records.
pub fn read(text: &str) -> Option<Vec<List>> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    named_items(&lines).map(|list| vec![list]).or_else(|| headed(text, &lines))
}

/// The fields of a text that is one record, such as a note.
pub fn record(text: &str) -> Option<Record> {
    if !text.contains('\n') {
        return None;
    }
    let lists = read(text)?;
    let first = lists.into_iter().next().filter(|list| !list.is_list)?;
    first.records.into_iter().next().filter(|record| record.len() >= FIELDS)
}

fn field(name: &str, value: &str) -> Field {
    let value = value.trim();
    let link =
        value.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")).filter(|link| !link.contains("[["));
    let value = link.unwrap_or(value).trim_matches(['`', '*']);
    Field { name: name.trim().to_owned(), value: value.to_owned(), ..Field::default() }
}

/// Items of a list that begin with a name in bold: `- **Aurora**: 4 seats, floor 1, equipment: screen, video`.
fn named_items(lines: &[&str]) -> Option<List> {
    let mut items = Vec::new();
    // A date over items is theirs.
    let mut date = String::new();
    for line in lines {
        if let Some(found) = BOLD.captures(line) {
            let text = |number: usize| found.get(number).map_or("", |part| part.as_str()).trim().to_owned();
            items.push((text(1), text(2), text(3), date.clone()));
        } else if let Some(found) = HEADING.captures(line) {
            let is_date = MOMENT.is_match(&found[2]);
            date = if is_date { found[2].to_owned() } else { String::new() };
        } else if line.starts_with(['-', '*', '+']) || line.contains(": ") {
            return None;
        }
    }
    if items.is_empty() || items.len() > RECORDS {
        return None;
    }
    let parts: Vec<Vec<ListedField>> = items.iter().map(|(_, _, rest, _)| parts(rest)).collect();
    let columns = columns(&parts);
    let are_codes = items.iter().all(|(_, code, ..)| code.is_empty() || !code.contains(' '));
    let record = |((name, code, _, date), parts): (&(String, String, String, String), &Vec<ListedField>)| {
        let mut record = vec![field("name", name)];
        if !code.is_empty() {
            record.push(field(if are_codes { "id" } else { "note" }, code));
        }
        if !date.is_empty() && !parts.iter().any(|part| part.name == "date") {
            record.push(field("date", date));
        }
        for (place, part) in parts.iter().enumerate() {
            let name =
                if part.name.is_empty() { columns.get(place).map_or("", String::as_str) } else { &part.name };
            record.extend(part.is_there.then(|| Field { is_set: part.is_set, ..field(name, &part.value) }));
        }
        record.retain(|field| field.value.len() <= VALUE_BYTES);
        record
    };
    let mut records: Vec<Record> = items.iter().zip(&parts).map(record).collect();
    // What has several values once may have several anywhere.
    let sets: BTreeSet<String> =
        records.iter().flatten().filter(|field| field.is_set).map(|field| field.name.clone()).collect();
    records.iter_mut().flatten().for_each(|field| field.is_set = sets.contains(&field.name));
    Some(List { records, is_list: true, ..List::default() })
}

/// What stands between two commas behind a name.
#[derive(Default)]
struct ListedField {
    /// Empty if nothing says what it is.
    name: String,
    value: String,
    is_set: bool,
    /// `no room` says that there is none.
    is_there: bool,
}

fn parts(rest: &str) -> Vec<ListedField> {
    let mut parts: Vec<ListedField> = Vec::new();
    let part = |name: &str, value: &str| ListedField {
        name: name.into(),
        value: value.into(),
        is_set: false,
        is_there: true,
    };
    let captures = |pattern: &LazyLock<Regex>, text: &str| -> Option<Vec<String>> {
        let found = pattern.captures(text)?;
        Some(
            found
                .iter()
                .skip(1)
                .map(|one| one.map_or(String::new(), |one| one.as_str().to_owned()))
                .collect(),
        )
    };
    for text in rest.split(", ").map(|text| text.trim().trim_end_matches('.')).filter(|text| !text.is_empty())
    {
        if let Some(found) = captures(&KEY, text) {
            parts.push(part(&found[0], &found[1]));
        } else if let Some(found) = captures(&MOMENT, text) {
            let ends = [("start", &found[1]), ("end", &found[2])];
            parts.push(part("date", &found[0]));
            parts.extend(
                ends.iter().filter(|(_, time)| !time.is_empty()).map(|(name, time)| part(name, time)),
            );
        } else if let Some(found) = captures(&COUNT, text) {
            parts.push(part(&found[1], &found[0]));
        } else if let Some(found) = captures(&NUMBERED, text) {
            parts.push(part(&found[0], &found[1]));
        } else if let Some(found) = captures(&WITHOUT, text) {
            parts.push(ListedField { name: found[0].clone(), ..ListedField::default() });
        } else if let Some(last) = parts.last_mut().filter(|last| last.is_named_list()) {
            // More values of the field in front.
            last.value += &format!(", {text}");
            last.is_set = true;
        } else {
            parts.push(part("", text));
        }
    }
    parts
}

impl ListedField {
    /// Whether a key is said in front of it, so that several values may follow.
    fn is_named_list(&self) -> bool {
        !self.name.is_empty()
            && self.is_there
            && !["date", "start", "end"].contains(&self.name.as_str())
            && !self.value.starts_with(|letter: char| letter.is_ascii_digit())
    }
}

/// What the parts at each place are, where an item says that it has none: `no room`.
fn columns(items: &[Vec<ListedField>]) -> Vec<String> {
    let most = items.iter().map(Vec::len).max().unwrap_or_default();
    let of = |place: usize| {
        let at = || items.iter().filter_map(|parts| parts.get(place));
        let without = at().find(|part| !part.is_there).map(|part| part.name.clone());
        // Another kind of part at this place is another column.
        let is_one = at().all(|part| part.name.is_empty() || !part.is_there);
        without.filter(|_| is_one).unwrap_or_default()
    };
    (0..most).map(of).collect()
}

/// A heading, or several, over `key: value` lines, and front matter.
fn headed(text: &str, lines: &[&str]) -> Option<Vec<List>> {
    let (front, lines) = match lines.split_first() {
        Some((&"---", rest)) if text.starts_with("---") => {
            let end = rest.iter().position(|line| *line == "---")?;
            (&rest[..end], &rest[end + 1..])
        }
        _ => (&[][..], lines),
    };
    let mut front_fields = Record::new();
    for line in front {
        let found = KEY.captures(line)?;
        let list = found[2].strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let own = field(&found[1], list.unwrap_or(&found[2]));
        front_fields
            .extend(Some(Field { is_set: list.is_some(), ..own }).filter(|field| !field.value.is_empty()));
    }
    let mut records: Vec<Record> = Vec::new();
    let mut items: Vec<Record> = Vec::new();
    for line in lines {
        if let Some(found) = HEADING.captures(line) {
            records.push(vec![field("title", &found[2])]);
        } else if let Some(item) = ["* ", "- ", "+ "].iter().find_map(|mark| line.strip_prefix(mark)) {
            let found = KEY.captures(item);
            items.push(match found {
                Some(found) => vec![field("name", &found[1]), field("", &found[2])],
                None => vec![field("", item)],
            });
        } else if let Some(record) = records.last_mut() {
            let moment = MOMENT.captures(line);
            if let Some(found) = moment {
                let names = ["date", "start", "end"].iter().zip(1..);
                let parts = names.filter_map(|(name, number)| Some(field(name, found.get(number)?.as_str())));
                record.extend(parts);
            } else if let Some(found) = KEY.captures(line) {
                record.push(field(&found[1], &found[2]));
            }
        }
    }
    let known = records.iter().filter(|record| record.len() >= FIELDS).count();
    if records.is_empty() || known < records.len() || records.len() > RECORDS {
        return (front_fields.len() >= FIELDS && records.is_empty())
            .then(|| vec![List { records: vec![front_fields], ..List::default() }]);
    }
    let is_list = records.len() > 1;
    if let ([only], false) = (records.as_mut_slice(), front_fields.is_empty()) {
        let is_new = |field: &Field| only.iter().all(|own| own.name != field.name);
        let new: Vec<Field> = front_fields.iter().filter(|field| is_new(field)).cloned().collect();
        only.extend(new);
    }
    records.iter_mut().for_each(|record| record.retain(|field| field.value.len() <= VALUE_BYTES));
    let mut lists = vec![List { records, is_list, ..List::default() }];
    if !is_list && !items.is_empty() && items.len() <= RECORDS {
        lists.push(List { name: "items".into(), records: items, is_list: true, ..List::default() });
    }
    Some(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let of = |record: &Record| {
            record.iter().map(|field| format!("{}={}", field.name, field.value)).collect::<Vec<_>>().join(" ")
        };
        let list = |list: &List| {
            format!("{}[{}]", list.name, list.records.iter().map(of).collect::<Vec<_>>().join("; "))
        };
        read(text).iter().flatten().map(list).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn items_with_a_bold_name_are_records() {
        assert_eq!(
            shown(
                "- **Aurora**: 4 seats, floor 1, equipment: screen\n- **Delphi**: 20 seats, floor 2, equipment: projector, video"
            ),
            "[name=Aurora seats=4 floor=1 equipment=screen; name=Delphi seats=20 floor=2 equipment=projector, video]"
        );
        assert_eq!(
            shown(
                "## Monday\n- **Assembly** (e1), 2027-03-01 09:00-10:30, Europa\n- **Repair** (e2), 2027-03-02 07:00-09:00, no room"
            ),
            "[name=Assembly id=e1 date=2027-03-01 start=09:00 end=10:30 room=Europa; name=Repair id=e2 date=2027-03-02 start=07:00 end=09:00]"
        );
        assert_eq!(shown("- plain\n- **bold**: x"), "");
    }

    #[test]
    fn a_heading_with_lines_of_keys_is_a_record_and_so_is_front_matter() {
        assert_eq!(
            shown(
                "---\ntags: [book]\n---\n\n# Winter Apples\n\nAuthor: Dagny Moen\nLent to: [[Pilar]]\n\nRead it twice."
            ),
            "[title=Winter Apples Author=Dagny Moen Lent to=Pilar tags=book]"
        );
        assert_eq!(
            shown("# Talk\n2027-03-02, 13:00 to 14:00\nRoom: Fjord\n* Ann: accepted\n* Bo: no answer"),
            "[title=Talk date=2027-03-02 start=13:00 end=14:00 Room=Fjord] items[name=Ann =accepted; name=Bo =no answer]"
        );
        for text in ["# Title\n\nSome prose that goes on.", "a: 1\nb: 2", "## A\nx: 1\n## B\nprose"] {
            assert_eq!(shown(text), "", "{text}");
        }
        assert_eq!(shown("## A\nx: 1\n## B\nx: 2"), "[title=A x=1; title=B x=2]");
    }
}
