//! Aligned columns.

/// Widths that fit each column's cells.
pub fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    (0..columns).map(widest).collect()
}

/// One row, as far as there are widths.
pub fn row(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// All rows, one a line.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    rows.iter().map(|cells| row(cells, &widths) + "\n").collect()
}

/// A title and rows of a name and a text. A text that does not fit this number of columns wraps. Empty if there
/// are no rows.
pub fn section(title: &str, rows: Vec<(String, String)>, columns: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let indent = if width == 0 { 2 } else { width + 4 };
    let mut text = format!("\n{title}\n");
    for (name, content) in rows {
        let mut line = format!("  {name}");
        line += &" ".repeat(indent.saturating_sub(line.chars().count()));
        let mut used = 0;
        for word in content.split(' ') {
            let more = word.chars().count() + usize::from(used > 0);
            if used > 0 && indent + used + more > columns {
                text += &format!("{}\n", line.trim_end());
                (line, used) = (" ".repeat(indent), 0);
            }
            if used > 0 {
                line.push(' ');
            }
            used += more;
            line += word;
        }
        text += &format!("{}\n", line.trim_end());
    }
    text
}
