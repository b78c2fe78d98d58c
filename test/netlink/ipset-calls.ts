/** ipset calls that tests run inside a network namespace. */
import { type IpsetChange, type IpsetSpec, Ipsets } from '../../netlink/ipset/ipset.ts';

/** A refused change with its error as text: IPC does not transfer error objects completely. */
export interface RefusedIpsetText {
  readonly change: IpsetChange;
  readonly error: string;
}

async function withSets<T>(use: (sets: Ipsets) => Promise<T>): Promise<T> {
  const sets = await Ipsets.open();
  try {
    return await use(sets);
  } finally {
    await sets.close();
  }
}

export const ipsetCalls = {
  listSets: async () => withSets((sets) => sets.list()),
  setEntries: async (name: string) => withSets((sets) => sets.entries(name)),
  createSet: async (spec: IpsetSpec) => withSets((sets) => sets.create(spec)),
  destroySet: async (name: string) => withSets((sets) => sets.destroy(name)),
  swapSets: async (a: string, b: string) => withSets((sets) => sets.swap(a, b)),

  changeSets: async (changes: readonly IpsetChange[]): Promise<RefusedIpsetText[]> =>
    withSets(async (sets) => {
      const refused = await sets.change(changes);
      return refused.map(({ change, error }) => ({ change, error: error.message }));
    }),

  /** Adds `count` entries to a hash:ip set. @returns the number of event loop turns meanwhile. */
  async turnsOfAdds(set: string, count: number): Promise<number> {
    let turns = 0;
    let turning = true;
    const turn = () => {
      turns++;
      if (turning) setImmediate(turn);
    };
    const changes = Array.from({ length: count }, (_, index): IpsetChange => {
      return {
        op: 'add',
        set,
        entry: { ip: `10.${index >> 16}.${(index >> 8) & 255}.${index & 255}` },
      };
    });
    setImmediate(turn);
    await withSets((sets) => sets.change(changes));
    turning = false;
    return turns;
  },
};
