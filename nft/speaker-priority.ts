/** Priorities in hooks input and postrouting at which the source of a pod's owned UDP port becomes the VIP. */
export const SPEAKER_PRIORITY = { input: 120, postrouting: 101 } as const;
