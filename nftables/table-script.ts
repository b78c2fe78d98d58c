/** Writes the whole table as a script for nft, for `portwide render`. */

import type { IpFamily } from '../api/objects.ts';
import { addressFormatter } from '../netlink/core/address.ts';
import { readU32 } from '../netlink/core/host-order.ts';
import { protocolOf } from '../netlink/core/protocol.ts';
import { verdictText } from '../nft/element.ts';
import { nftFamily } from '../nft/rule.ts';
import { type NftChain, withJumpTargets } from './chains.ts';
import type { MapElement } from './element.ts';
import { type MapField, mapSpec } from './maps.ts';
import { chainRulesScript, TABLE, tableDeclarationScript } from './static-chains.ts';

const ELEMENTS_PER_LINE = 500;

/**
 * A script for nft that replaces the table in one transaction. It cannot extend an existing table: nft 1.0.6
 * refuses rules with DNAT to address and port from a map in a table that it reads back from the kernel.
 */
export function tableScript(
  chains: Iterable<NftChain>,
  elements: Iterable<MapElement>,
  family: IpFamily,
): string {
  const unique = new Map([...chains].flatMap(withJumpTargets).map((chain) => [chain.name, chain]));
  const byMap = Map.groupBy(elements, ({ map }) => map);
  const format = elementFormatter(family);
  const lines = [...byMap].flatMap(([map, all]) => {
    const texts = all.map(format);
    const pieces = Array.from({ length: Math.ceil(texts.length / ELEMENTS_PER_LINE) }, (_, index) =>
      texts.slice(index * ELEMENTS_PER_LINE, (index + 1) * ELEMENTS_PER_LINE),
    );
    return pieces.map(
      (piece) => `add element ${nftFamily(family)} ${TABLE} ${map} { ${piece.join(', ')} }`,
    );
  });
  const all = [...unique.values()];
  const table = `table ${nftFamily(family)} ${TABLE}`;
  // Deleting a table that does not exist is an error, so add it first.
  const emptyTable = `add ${table}\ndelete ${table}`;
  const declarations = tableDeclarationScript(all, family);
  return [emptyTable, declarations, chainRulesScript(all, family), ...lines, ''].join('\n');
}

/** Formats elements in nft syntax: `10.96.0.1 . tcp . 80 : goto internal-port-3` */
export function elementFormatter(family: IpFamily): (element: MapElement) => string {
  const formatAddress = addressFormatter();
  const width = family === 'IPv4' ? 4 : 16;
  const value: Readonly<Record<MapField, (bytes: Buffer, at: number) => string>> = {
    address: (bytes, at) => formatAddress(bytes, at, at + width),
    protocol: (bytes, at) => (protocolOf(bytes[at] ?? 0) ?? String(bytes[at])).toLowerCase(),
    port: (bytes, at) => String(bytes.readUInt16BE(at)),
    index: (bytes, at) => String(readU32(bytes, at)),
  };
  const fields = (names: readonly MapField[], low: Buffer, high: Buffer) => {
    let at = 0;
    return names
      .map((name) => {
        const [from, to] = [value[name](low, at), value[name](high, at)];
        at += name === 'address' ? width : 4;
        return from === to ? from : `${from}-${to}`;
      })
      .join(' . ');
  };
  return ({ map, key, keyEnd = key, data, bound }) => {
    const spec = mapSpec(map);
    const range = fields(spec.key, key, keyEnd);
    const text = bound === undefined ? range : `${range} (only the ${bound} of a range)`;
    if (data === undefined || spec.data === undefined) return text;
    if (!Buffer.isBuffer(data)) return `${text} : ${verdictText(data)}`;
    return spec.data === 'verdict' ? text : `${text} : ${fields(spec.data, data, data)}`;
  };
}
