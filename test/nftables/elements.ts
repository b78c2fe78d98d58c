import type { IpFamily } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import type { FakeTables } from '../../nft/fake-tables.ts';
import { cidrBounds, portField, portKey } from '../../nft/keys.ts';
import type { MapElement } from '../../nftables/element.ts';
import type { MapName } from '../../nftables/maps.ts';
import { tableScript } from '../../nftables/table-script.ts';

/** An element with a VIP, and ranges of TCP ports, sources, or both. */
export function rangeElement(
  map: MapName,
  vip: string,
  ...fields: readonly (string | { readonly from: number; readonly to: number })[]
): MapElement {
  const bounds = fields.map((field) =>
    typeof field === 'string'
      ? cidrBounds(field)
      : ([portKey('TCP', field.from), portKey('TCP', field.to)] as const),
  );
  const address = addressBytes(vip);
  return {
    map,
    key: Buffer.concat([address, ...bounds.map(([first]) => first)]),
    keyEnd: Buffer.concat([address, ...bounds.map(([, last]) => last)]),
  };
}

/** Ports of an IPv4 address in nft syntax, in a map whose keys are numbers (`MapSpec.isOrdered`). */
export function numberRange(address: string, from: number, to: number): string {
  const [first, last] = [from, to].map((port) =>
    Buffer.concat([addressBytes(address), portField(port)]).toString('hex'),
  );
  return `0x${first}-0x${last}`;
}

/** Elements in nft syntax by map: `10.96.0.10 . tcp . 80 : goto …`. */
export function textsOf(
  elements: Iterable<MapElement>,
  family: IpFamily = 'IPv4',
): Readonly<Partial<Record<MapName, readonly string[]>>> {
  const script = tableScript([], elements, family);
  const texts: Partial<Record<MapName, string[]>> = {};
  for (const [, map = '', list = ''] of script.matchAll(
    /^add element \S+ portwide (\S+) \{ (.*) \}$/gm,
  )) {
    const name = map as MapName;
    texts[name] = [...(texts[name] ?? []), ...list.split(', ')];
  }
  return texts;
}

/** The elements of one map in nft syntax. */
export function textsIn({ sets, family }: FakeTables, map: MapName): readonly string[] {
  const elements = [...(sets.get(map)?.values() ?? [])].map((element) => ({ map, ...element }));
  return textsOf(elements, family)[map] ?? [];
}
