//! What changes in the results of a tool although nothing was done.

use std::collections::BTreeSet;

use crate::{
    harvest::{self, Field, Reading},
    words,
};

/// What changes in the results of a tool although nothing was done.
#[derive(Debug, Clone, PartialEq)]
pub enum Changing {
    All,
    Fields(BTreeSet<String>),
}

impl Changing {
    /// What differs between results of the same call.
    pub fn between(texts: &[&str]) -> Option<Self> {
        let first = harvest::read(texts.first()?);
        let (mut fields, mut differs) = (BTreeSet::new(), false);
        for text in texts.iter().filter(|text| **text != texts[0]) {
            let other = harvest::read(text);
            let shape = |reading: &Reading| -> Vec<(String, Vec<Vec<String>>)> {
                let names =
                    |record: &harvest::Record| record.iter().map(|field| field.name.clone()).collect();
                reading
                    .lists
                    .iter()
                    .map(|list| (list.name.clone(), list.records.iter().map(names).collect()))
                    .collect()
            };
            if first.lists.is_empty() || shape(&first) != shape(&other) {
                return Some(Self::All);
            }
            let all = |reading: &Reading| -> Vec<Field> {
                reading.lists.iter().flat_map(|list| &list.records).flatten().cloned().collect()
            };
            let differ: BTreeSet<String> = all(&first)
                .into_iter()
                .zip(all(&other))
                .filter(|(one, two)| one != two)
                .map(|(one, _)| one.name)
                .collect();
            differs = true;
            fields.extend(differ);
        }
        match () {
            () if !differs => None,
            // Records change places, or a value without a name differs.
            () if fields.len() > 1 && fields.iter().any(|name| words::is_identifier(name))
                || fields.contains("") =>
            {
                Some(Self::All)
            }
            () => Some(Self::Fields(fields)),
        }
    }

    /// A result without what changes.
    pub fn stable(changing: Option<&Self>, text: &str) -> String {
        let Some(Self::Fields(fields)) = changing else { return text.to_owned() };
        let mut reading = harvest::read(text);
        for record in reading.lists.iter_mut().flat_map(|list| &mut list.records) {
            record.retain(|field| !fields.contains(&field.name));
        }
        format!("{:?}", reading.lists)
    }
}
