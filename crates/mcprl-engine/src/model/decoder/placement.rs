//! Which device each layer of a decoder is on.

use candle_core::Device;

use crate::model::{ModelConfig, config::MOST_LAYERS, kernels::Format};

/// The devices of a decoder. The embedding, the last norm and the output projection are on the first. Each device has
/// consecutive layers, and rows pass through the devices in their order.
#[derive(Debug, Clone)]
pub struct Placement {
    devices: Vec<Device>,
    /// Per device: the layer after its last one. The last device has all that remain.
    ends: Vec<usize>,
}

impl From<Device> for Placement {
    fn from(device: Device) -> Self {
        Self { devices: vec![device], ends: Vec::new() }
    }
}

impl Placement {
    /// Spreads the layers over these devices, at least one, so that the largest share of the weights is as small as possible.
    /// `format`: that of frozen weights.
    pub fn across(config: &ModelConfig, format: Format, devices: Vec<Device>) -> Self {
        let by_kind = config.linears_by_kind();
        let bytes = |layer| {
            let linears = &by_kind[&config.layer(layer).by_weights()];
            linears.iter().map(|linear| format.bytes(linear.outputs, linear.inputs)).sum()
        };
        let layers: Vec<usize> = (0..config.layers.min(MOST_LAYERS)).map(bytes).collect();
        let tables = if config.tied { 1 } else { 2 };
        let ends = format.at_the_ends().bytes(config.vocabulary, config.hidden).saturating_mul(tables);
        Self { ends: spread(ends, &layers, devices.len()), devices }
    }

    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of the embedding, the last norm and the output projection.
    pub fn first(&self) -> &Device {
        &self.devices[0]
    }

    /// The index of a layer's device.
    pub fn index(&self, layer: usize) -> usize {
        let last = self.devices.len() - 1;
        self.ends.iter().position(|end| layer < *end).map_or(last, |index| index.min(last))
    }

    /// The device of a layer.
    pub fn device(&self, layer: usize) -> &Device {
        &self.devices[self.index(layer)]
    }

    /// A value for each device, given its first layer, or that of the next device if it has none.
    pub fn each<T>(&self, value: impl FnMut(usize) -> T) -> Vec<T> {
        let firsts = std::iter::once(0).chain(self.ends.iter().copied());
        firsts.take(self.devices.len()).map(value).collect()
    }

    /// The share of what all these layers have together (`amount`, by layer) that the device with the most has.
    pub fn largest_share(&self, layers: usize, amount: impl Fn(usize) -> usize) -> f64 {
        let mut amounts = vec![0; self.devices.len()];
        (0..layers).for_each(|layer| amounts[self.index(layer)] += amount(layer));
        let (most, all) = (amounts.iter().max().copied().unwrap_or(0), amounts.iter().sum::<usize>());
        if all == 0 { 1.0 } else { most as f64 / all as f64 }
    }
}

/// Per device: the layer after its last one. `first`: bytes on the first device besides those of its layers.
fn spread(first: usize, layers: &[usize], devices: usize) -> Vec<usize> {
    let fill = |most: usize| {
        let mut ends = Vec::with_capacity(devices);
        let mut load = first;
        for (index, bytes) in layers.iter().enumerate() {
            // Each later device gets a layer.
            while layers.len() - index < devices - ends.len() {
                ends.push(index);
                load = 0;
            }
            if load.saturating_add(*bytes) > most {
                if ends.len() + 1 == devices {
                    return None;
                }
                ends.push(index);
                load = 0;
            }
            load = load.saturating_add(*bytes);
        }
        ends.resize(devices, layers.len());
        Some(ends)
    };
    let mut low = layers.iter().copied().max().unwrap_or(0);
    let mut high = layers.iter().fold(first, |sum, bytes| sum.saturating_add(*bytes));
    while low < high {
        let middle = low + (high - low) / 2;
        if fill(middle).is_some() { high = middle } else { low = middle + 1 }
    }
    fill(high).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_is_as_small_as_possible_and_every_device_has_a_layer() {
        assert_eq!(spread(0, &[1; 6], 2), [3, 6]);
        assert_eq!(spread(0, &[1; 6], 1), [6]);
        assert_eq!(spread(0, &[1; 4], 3), [2, 3, 4]);
        assert_eq!(spread(0, &[5, 1, 1, 1, 1, 1], 2), [1, 6]);
    }

    #[test]
    fn the_first_device_has_fewer_layers_because_it_has_the_vocabulary() {
        assert_eq!(spread(2, &[1; 6], 2), [2, 6]);
        assert_eq!(spread(9, &[1; 4], 3), [0, 2, 4]);
    }

    #[test]
    fn with_fewer_layers_than_devices_the_first_has_none() {
        assert_eq!(spread(0, &[1, 1], 3), [0, 1, 2]);
        assert_eq!(spread(0, &[1], 3), [0, 0, 1]);
    }

    #[test]
    fn a_layer_is_on_the_device_that_its_number_is_before_the_end_of() {
        let placement = Placement { devices: vec![Device::Cpu; 3], ends: vec![2, 3, 5] };
        let indices: Vec<usize> = (0..6).map(|layer| placement.index(layer)).collect();
        assert_eq!(indices, [0, 0, 1, 2, 2, 2]);
        assert_eq!(Placement::from(Device::Cpu).index(7), 0);
    }

    #[test]
    fn the_largest_share_is_that_of_the_device_with_the_most() {
        let placement = Placement { devices: vec![Device::Cpu; 2], ends: vec![3, 8] };
        let share = |amount: fn(usize) -> usize| placement.largest_share(8, amount);
        assert_eq!(
            [share(|_| 1), share(|layer| usize::from(layer % 4 == 3)), share(|_| 0)],
            [0.625, 1.0, 1.0]
        );
    }
}
