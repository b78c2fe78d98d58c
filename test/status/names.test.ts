import assert from 'node:assert/strict';
import { nameOfEndpoint, nameOfPolicy, withoutPolicyKind } from '../../status/print/names.ts';
import { ENDPOINTS, POLICIES } from './answers.ts';

describe('names of rows', () => {
  it('put an IPv6 address with a port in brackets', () => {
    const [endpoint] = ENDPOINTS;
    assert.ok(endpoint);
    const name = nameOfEndpoint({ ...endpoint, address: 'fd00::5', port: 8080 });
    assert.equal(name, 'endpoint/shop/web/[fd00::5]:8080');
  });

  it('of policies name an object again', () => {
    const [clusterWide, namespaced] = POLICIES;
    assert.ok(clusterWide && namespaced);
    assert.equal(withoutPolicyKind(nameOfPolicy(clusterWide)), 'cluster');
    assert.equal(withoutPolicyKind(nameOfPolicy(namespaced)), 'shop/web');
  });

  it('may have a namespace with the name of a kind', () => {
    for (const given of ['networkpolicy/web', 'shop/web', 'web', 'mynetworkpolicy/shop/web']) {
      assert.equal(withoutPolicyKind(given), given);
    }
    assert.equal(withoutPolicyKind('networkpolicy/networkpolicy/web'), 'networkpolicy/web');
  });
});
