/** Compares the interfaces of the flowtable, and the sets with their names, with the result of the last update. */
import type { NftReader } from '../nft/table.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import type { ComparisonBuilder } from '../proxier/comparison.ts';
import { FLOWTABLE, FLOWTABLE_HAIRPINS, FLOWTABLE_SETS } from './flowtable.ts';
import { type FlowtableDevices, readNames } from './flowtable-devices.ts';

/** A list of interfaces in the kernel. */
interface Listed {
  readonly type: 'interface' | 'element';
  readonly in: string;
  readonly names: ReadonlySet<string>;
  readonly text: (name: string) => string;
}

/**
 * Ignores interfaces that appeared or went since the last update: they are no difference, but an update that is due.
 * @throws NetlinkError
 */
export async function compareFlowtable(
  tables: NftReader,
  devices: Pick<FlowtableDevices, 'interfaces' | 'listUsable'>,
  result: ComparisonBuilder,
): Promise<void> {
  const { interfaces } = devices;
  const flowtable = (await tables.flowtables())?.find(({ name }) => name === FLOWTABLE);
  // A missing flowtable is a difference in itself.
  if (interfaces === undefined || flowtable === undefined) return;
  const lists: Listed[] = [
    {
      type: 'interface',
      in: `flowtable ${FLOWTABLE}`,
      names: new Set(flowtable.devices),
      text: (name) => name,
    },
  ];
  for (const set of FLOWTABLE_SETS) {
    const names = await readNames(tables, set);
    const times = set === FLOWTABLE_HAIRPINS ? 2 : 1;
    const text = (name: string) => Array<string>(times).fill(`"${name}"`).join(' . ');
    lists.push({ type: 'element', in: set, names, text });
  }
  const usable = await devices.listUsable();
  const attached = new Set(interfaces.attached.map(({ name }) => name));
  for (const { type, in: place, names, text } of lists) {
    const add = (state: ComparedState, name: string) =>
      result.add(state, () => ({
        type,
        in: place,
        desired: state === 'unexpected' ? null : text(name),
        actual: state === 'missing' ? null : text(name),
        service: null,
      }));
    for (const name of attached)
      if (usable.has(name)) add(names.has(name) ? 'ok' : 'missing', name);
    for (const name of names) if (!attached.has(name) && !usable.has(name)) add('unexpected', name);
  }
}
