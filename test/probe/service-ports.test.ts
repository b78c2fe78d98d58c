import assert from 'node:assert/strict';
import { servicePorts } from '../../probe/service-ports.ts';

describe('probe: ports of a Service', () => {
  for (const [title, served, protocols, expected] of [
    ['a port', ['80/TCP'], undefined, [{ protocol: 'TCP', ports: '80' }]],
    ['node ports', ['80:30080/TCP'], undefined, [{ protocol: 'TCP', ports: '80' }]],
    [
      'ports with both protocols, and others',
      ['53/UDP', '53/TCP', '9153/TCP', '443/TCP'],
      undefined,
      [
        { protocol: 'TCP', ports: '53,9153,443' },
        { protocol: 'UDP', ports: '53' },
      ],
    ],
    [
      'ports of the protocols of --proto',
      ['53/UDP', '53/TCP', '9153/TCP'],
      ['UDP'],
      [{ protocol: 'UDP', ports: '53' }],
    ],
    [
      'ranges',
      ['5060/UDP,20000-20099/UDP', '30000-30009/TCP (10 per pod)'],
      undefined,
      [
        { protocol: 'TCP', ports: '30000-30009' },
        { protocol: 'UDP', ports: '5060,20000-20099' },
      ],
    ],
    ['nothing of a Service with SCTP only', ['9/SCTP'], undefined, []],
    ['all ports', ['all'], undefined, undefined],
  ] as const) {
    it(`are ${title}`, () => assert.deepEqual(servicePorts(served, protocols), expected));
  }
});
