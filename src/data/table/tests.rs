use super::*;

table! {
    /// A row with a column of every type.
    Sample in "sample" {
        /// A text.
        text: String,
        /// An optional text.
        note: Option<String>,
        /// A number.
        score: f32,
        /// Token ids.
        tokens: Vec<u32>,
        /// A mask.
        mask: Vec<bool>,
        /// Names.
        names: Vec<String>,
        /// An optional bool.
        correct: Option<bool>,
    }
}

table! {
    /// The same table with another type in one column.
    Other in "other" {
        /// A number instead of a text.
        text: u32,
    }
}

fn rows() -> Vec<Sample> {
    vec![
        Sample {
            text: "a".into(),
            note: None,
            score: -0.5,
            tokens: vec![],
            mask: vec![true],
            names: vec!["é".into()],
            correct: Some(false),
        },
        Sample {
            text: String::new(),
            note: Some("n".into()),
            score: f32::MIN_POSITIVE,
            tokens: vec![1, 2],
            mask: vec![],
            names: vec![],
            correct: None,
        },
    ]
}

#[test]
fn rows_round_trip_through_a_file_and_equal_rows_give_equal_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1.parquet"), folder.path().join("2.parquet"));
    write(&one, &rows()).unwrap();
    write(&two, &rows()).unwrap();
    assert_eq!(read::<Sample>(&one).unwrap(), rows());
    assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
}

table! {
    /// A row that may have indices.
    Marked in "marked" {
        /// A text.
        text: String,
        /// Indices, in few rows.
        marks: Option<Vec<u32>>,
    }
}

table! {
    /// The same without.
    Plain in "plain" {
        /// A text.
        text: String,
    }
}

#[test]
fn an_optional_column_that_is_null_everywhere_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1.parquet"), folder.path().join("2.parquet"));
    let row = |marks: Option<Vec<u32>>| Marked { text: "a".into(), marks };
    let few = [row(Some(vec![3, 5])), row(None), row(Some(vec![]))];
    write(&one, &few).unwrap();
    assert_eq!(read::<Marked>(&one).unwrap(), few);
    write(&one, &[row(None)]).unwrap();
    write(&two, &[Plain { text: "a".into() }]).unwrap();
    assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
    assert_eq!(read::<Marked>(&two).unwrap(), [row(None)]);
}

#[test]
fn an_empty_table_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.parquet");
    write::<Sample>(&path, &[]).unwrap();
    assert_eq!(read::<Sample>(&path).unwrap(), []);
}

#[test]
fn a_column_of_another_type_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &rows()).unwrap();
    let error = read::<Other>(&path).unwrap_err();
    assert_eq!(error.code(), "data::column");
    assert!(error.to_string().contains("column `text` of type UInt32, found Utf8"), "{error}");
}

#[test]
fn a_truncated_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &rows()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for keep in [0, 4, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..keep]).unwrap();
        assert_eq!(read::<Sample>(&path).unwrap_err().code(), "data::unreadable");
    }
}

#[test]
fn tables_of_polars_pyarrow_and_duckdb_are_read_in_any_width_and_layout() {
    for writer in ["polars", "pyarrow", "duckdb"] {
        let path = fixture(&format!("{writer}.parquet"));
        assert_eq!(read::<Sample>(&path).unwrap(), rows(), "{writer}");
    }
}

#[test]
fn a_number_that_does_not_fit_its_column_is_refused() {
    let error = read::<Sample>(&fixture("negative_token.parquet")).unwrap_err();
    assert_eq!(error.code(), "data::column");
    assert!(error.to_string().contains("column `tokens`"), "{error}");
}

#[test]
fn a_missing_value_within_a_list_is_refused() {
    let error = read::<Sample>(&fixture("missing_name.parquet")).unwrap_err();
    assert_eq!(error.code(), "data::column");
    assert!(error.to_string().contains("column `names`"), "{error}");
}

/// Written by `tests/reference/tables.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures/tables").join(name)
}

#[test]
fn a_reward_that_is_not_finite_is_reported_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rewards.parquet");
    let check = |values: &[f32]| {
        let reward = |reward: &f32| crate::data::Reward {
            trajectory_id: "t".into(),
            scenario_id: "s".into(),
            reward: *reward,
            correct: None,
            components: "{}".into(),
            explanation: None,
        };
        write(&path, &values.iter().map(reward).collect::<Vec<_>>()).unwrap();
        crate::data::check("rewards", &path).map_err(|wrong| wrong.to_string())
    };
    assert_eq!(check(&[0.0, -1.5]), Ok(()));
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        assert_eq!(check(&[0.0, value]), Err(format!("{}: `reward` of row 1 is {shown}", path.display())));
    }
}

#[test]
fn a_part_of_a_table_is_read_by_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let sample = |number: u32| Sample {
        text: format!("row {number}"),
        tokens: vec![number; 100],
        ..Sample::default()
    };
    write(&path, &(0..5000).map(sample).collect::<Vec<_>>()).unwrap();
    let texts = |rows: Option<&[usize]>| -> Vec<String> {
        read_part::<Plain>(&path, rows).unwrap().into_iter().map(|row| row.text).collect()
    };
    assert_eq!(texts(Some(&[0, 7, 4999, 5000])), ["row 0", "row 7", "row 4999"]);
    assert_eq!(texts(Some(&[])), [""; 0]);
    assert_eq!(texts(None).len(), 5000);
    assert_eq!(read_part::<Sample>(&path, Some(&[3])).unwrap(), [sample(3)]);
    assert_eq!(read_part::<Other>(&path, None).unwrap_err().code(), "data::column");
}
