/** The slices of owned ports in `portwide describe service`. Pure. */
import { compareText } from '../../api/collections.ts';
import type { OwnedPortsStatus, OwnedSliceStatus } from '../api/services.ts';
import type { Section } from './sections.ts';
import { safe } from './style.ts';
import type { Column } from './table.ts';
import { NONE } from './units.ts';

type WithoutSlice = OwnedPortsStatus['withoutSlice'][number];

const SLICE_COLUMNS: readonly Column<OwnedSliceStatus>[] = [
  {
    header: 'ORDINAL',
    cell: ({ firstOrdinal, lastOrdinal }) =>
      firstOrdinal === lastOrdinal ? `${firstOrdinal}` : `${firstOrdinal}-${lastOrdinal}`,
  },
  { header: 'PORTS', cell: ({ ports }) => ports },
  { header: 'OWNER', cell: ({ owner }) => owner ?? NONE },
  { header: 'STATE', cell: ({ state }) => state, isState: true },
];

const WITHOUT_SLICE_COLUMNS: readonly Column<WithoutSlice>[] = [
  { header: 'ENDPOINT', cell: ({ address }) => address },
  { header: 'ORDINAL', cell: ({ ordinal }) => (ordinal === null ? NONE : `${ordinal}`) },
  { header: 'REASON', cell: ({ reason }) => reason },
];

/** @param table formats rows as lines. */
export function ownedPortSections(
  all: readonly OwnedPortsStatus[],
  table: <Row>(columns: readonly Column<Row>[], rows: readonly Row[]) => string[],
): Section[] {
  return all
    .toSorted((a, b) => compareText(a.family, b.family))
    .flatMap((owned): Section[] => {
      const { family, ports, portsPerPod, udpVip, slices, omittedSlices, withoutSlice } = owned;
      const hasUdp = ports.some((range) => range.endsWith('/UDP'));
      const speaks = [`owners speak as ${udpVip ?? 'no VIP: it is refused'}`];
      const taken = owned.portsOfOtherServices.map(
        ({ vip, ports: others }) => `other Services list on ${vip}: ${safe(others.join(', '))}`,
      );
      const refused = owned.refusedVips.map(({ vip, service }) =>
        service === null
          ? `not served on ${vip}: it is an address of this node`
          : `not served on ${vip}: the pods of Service ${safe(service)} answer there`,
      );
      const more = omittedSlices > 0 ? [`and ${omittedSlices} more`] : [];
      const without =
        withoutSlice.length === 0
          ? []
          : ['endpoints that own nothing:', ...table(WITHOUT_SLICE_COLUMNS, withoutSlice)];
      return [
        [
          `Owned ports, ${family}`,
          [
            `${safe(ports.join(', '))}, ${portsPerPod} for each pod`,
            ...(hasUdp ? speaks : []),
            ...taken,
            ...refused,
            ...table(SLICE_COLUMNS, slices),
            ...more,
            ...without,
          ],
        ],
      ];
    });
}
