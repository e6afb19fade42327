//! The words that worlds are made of.

/// Things.
pub(super) const NOUNS: [&str; 48] = [
    "lamp", "boat", "garden", "engine", "statue", "bridge", "cheese", "horse", "comet", "island", "carpet",
    "tower", "drum", "painting", "tractor", "castle", "melon", "clock", "sofa", "mine", "harbor", "robot",
    "violin", "glacier", "tunnel", "bakery", "camera", "tent", "volcano", "kettle", "orchard", "rocket",
    "library", "saddle", "vase", "train", "hotel", "shrine", "wagon", "theatre", "pump", "canal", "mask",
    "kiln", "piano", "farm", "museum", "lantern",
];

pub(super) fn plural(noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if noun == "volcano" => "volcanoes".into(),
        None => format!("{noun}s"),
    }
}

/// Properties whose values are numbers.
pub(super) const NUMBERS: [&str; 24] = [
    "price", "weight", "height", "age", "length", "depth", "rating", "speed", "rank", "width", "score",
    "level", "range", "cost", "volume", "rent", "noise", "power", "fee", "mileage", "capacity", "warmth",
    "gain", "debt",
];

/// Properties whose values are words.
pub(super) const WORDS: [&str; 16] = [
    "color", "material", "city", "season", "shape", "flavor", "style", "region", "brand", "mood", "texture",
    "origin", "pattern", "purpose", "status", "scent",
];

/// Values of those.
pub(super) const VALUES: [&str; 40] = [
    "amber", "azure", "coral", "ivory", "jade", "olive", "pearl", "ruby", "silver", "teal", "cedar",
    "copper", "cotton", "granite", "linen", "marble", "velvet", "walnut", "winter", "summer", "north",
    "south", "east", "west", "round", "square", "narrow", "plain", "striped", "dotted", "calm", "bright",
    "mild", "sharp", "rough", "smooth", "young", "broken", "new", "rare",
];

/// What connects a thing with another thing.
pub(super) const LINKS: [&str; 10] =
    ["neighbor", "twin", "owner", "rival", "supplier", "successor", "sponsor", "partner", "keeper", "source"];

/// Syllables of names.
pub(super) const FIRST: [&str; 32] = [
    "Ba", "Ce", "Di", "Fo", "Gu", "Ha", "Je", "Ki", "Lo", "Mu", "Na", "Pe", "Ri", "So", "Tu", "Va", "We",
    "Yi", "Zo", "Bru", "Cla", "Dre", "Fli", "Gro", "Kru", "Pla", "Sne", "Tri", "Sta", "Ble", "Cri", "Glo",
];
pub(super) const SECOND: [&str; 24] = [
    "ba", "den", "fir", "gol", "hun", "jar", "kel", "lim", "mon", "nur", "pas", "rek", "sil", "tov", "vun",
    "wax", "yel", "zin", "dra", "ket", "lor", "mis", "ran", "tus",
];
